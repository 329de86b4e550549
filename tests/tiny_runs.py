"""A dataset that is prepared in a second, and recipes that are trained on it in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crossbatch.config import Recipe
from crossbatch.data import Dataset, open_dataset, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source

if TYPE_CHECKING:
    from pathlib import Path


def tiny_dataset(path: Path, users: int = 400, items: int = 200, events: int = 6000) -> Dataset:
    """Prepare a dataset at a path that does not exist yet."""
    prepare(synthetic_source(SynthOptions(users, items, events, seed=3)), path)
    return open_dataset(path)


def tiny_recipe(sampler: dict[str, Any], *, train: dict[str, Any], **model: Any) -> Recipe:
    """Eight dimensions, 32 rows a batch, dense Adam; further keys of `[train]` and `[model]`."""
    plain = {"name": "youtube_dnn", "dim": 8, "normalize": False, "history_dropout": 0.0}
    steps = {"schedule": "constant", "adam": "dense", "batch_size": 32, "threads": 1}
    return Recipe.from_dict(
        {
            "model": plain | model,
            "sampler": sampler,
            "loss": {"temperature": 1.0},
            "train": steps | {"device": "cpu"} | train,
        }
    )
