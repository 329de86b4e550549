"""The paper's shapes: a generated dataset of that size, our recipes on it, what a batch touches."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.config import Recipe
from crossbatch.data import Dataset, open_dataset
from crossbatch.training.build import build_trainer, resolve
from measure.floor import HIDDEN, Shape, Work, columns, work

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.training.step import Trainer

MODELS = ("youtube_dnn", "gru4rec", "mind")
TOWER_OF = {"recency": "youtube_dnn"}  # rows that are a tower with other options
SAMPLERS = ("uniform", "in_batch", "mixed", "cross_batch")
FULL = {"users": 459_133, "items": 313_966, "interactions": 8_898_041}  # Amazon-Books
TINY = {"users": 2_000, "items": 4_000, "interactions": 40_000}
MIN_HISTORY = 4  # as in the paper: it decides how long histories are
BATCHES_COUNTED = 64  # over which positions and rows are averaged


def generated(folder: Path, size: dict[str, int]) -> Dataset:
    """The dataset in `folder`, generated at first use."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "crossbatch", "synth", "--quiet", "--out", str(folder)]
        sizes = [word for key, value in size.items() for word in (f"--{key}", str(value))]
        subprocess.run([*command, *sizes], check=True)
    return open_dataset(folder)


def tower_options(model: str, shape: Shape) -> dict[str, Any]:
    """Options of a user tower at a shape; YouTube DNN has an MLP behind its mean.

    `"recency"` is YouTube DNN with a learned weight of each age.
    """
    options: dict[str, dict[str, Any]] = {
        "youtube_dnn": {"hidden": [HIDDEN]},
        "recency": {"hidden": [HIDDEN], "pooling": "recency"},
        "sasrec": {"blocks": shape.blocks, "max_length": shape.L},
        "gru4rec": {},
        "mind": {"interests": shape.K, "iterations": shape.iterations},
    }
    return options[model]


def sampler_options(sampler: str, shape: Shape) -> dict[str, Any]:
    """Options of a sampler at a shape."""
    options: dict[str, dict[str, Any]] = {
        "uniform": {"num_negatives": shape.negatives},
        "in_batch": {},
        "mixed": {"num_uniform": shape.num_uniform},
        # Read from the first step on: warm-up would be timed as in-batch.
        "cross_batch": {"capacity": shape.M, "warmup_steps": 0},
    }
    return options[sampler]


def recipe(model: str, sampler: str, shape: Shape, *, adam: str = "lazy") -> Recipe:
    """Both towers read ids and categories; `adam` may also be `"adagrad"`."""
    tables = {"tables": "adagrad"} if adam == "adagrad" else {"adam": adam}
    return Recipe.from_dict(
        {
            "model": {
                "name": TOWER_OF.get(model, model),
                "dim": shape.d,
                "history": "content",
                "item_features": ["category"],
                "user_features": [],
                "item": {"hidden": [HIDDEN], "feature_dims": {"category": shape.d}},
                "tower": tower_options(model, shape),
                "normalize": False,
                "history_dropout": 0.0,
            },
            "sampler": {"name": sampler} | sampler_options(sampler, shape),
            "loss": {"temperature": 1.0},
            "train": {
                "batch_size": shape.B,
                "history_length": shape.L,
                "min_history": MIN_HISTORY,
                "sample_by": "user",
                "lr": 0.001,
                "schedule": "constant",
                "max_steps": 1_000_000,
                "device": "cpu",
            }
            | tables,
        }
    )


def trainer(chosen: Recipe, dataset: Dataset) -> Trainer:
    """Towers, sampler and optimiser of a recipe, ready to step."""
    return build_trainer(resolve(chosen, dataset), dataset)


def count(model: str, sampler: str, shape: Shape, dataset: Dataset) -> Work:
    """The work of one step, with positions and rows averaged over the first batches."""
    drawn = columns(sampler, shape).encoded - shape.B
    positions, rows = _touched(shape, drawn, dataset)
    return work(model, sampler, shape, positions, rows)


@cache
def _touched(shape: Shape, drawn: int, dataset: Dataset) -> tuple[float, float]:
    """Real positions and distinct items of a batch with so many drawn ones.

    Items stand for rows of the id table; the categories' is small enough to stay in cache.
    """
    generator = torch.Generator().manual_seed(0)
    positions = rows = 0
    batches = dataset.batches(shape.B, seed=0, history_length=shape.L, min_history=MIN_HISTORY)
    for batch in islice(batches, BATCHES_COUNTED):
        history = batch.history[batch.history != 0]
        uniform = torch.randint(1, dataset.num_items + 1, (drawn,), generator=generator)
        positions += len(history)
        rows += len(torch.cat([history, batch.item_ids, uniform]).unique())
    return positions / BATCHES_COUNTED, rows / BATCHES_COUNTED
