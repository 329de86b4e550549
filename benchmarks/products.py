"""What oneDNN's matrix products bring: training steps with and without them, in one run.

    python benchmarks/products.py DATASET

Steps of the defaults (in-batch negatives, 256 dimensions) on one thread; with and without take
turns, whether or not `crossbatch.kernels.products` uses oneDNN on this processor. CPU milliseconds,
medians over turns.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.kernels import products
from crossbatch.training.build import build_trainer, draw_batches, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.data import Dataset

MODELS: dict[str, dict[str, Any]] = {
    "recent_items": {},
    "youtube_dnn": {"tower": {"pooling": "recency"}},
    "gru4rec": {},
    "mind": {},
    "sasrec": {},
}
WARM_UP, STEPS = 10, 8


def steps_of(model: str, batch: int, dataset: Dataset) -> Callable[[], object]:
    """A training step of a model."""
    recipe = Recipe.from_dict(
        {
            "model": {"name": model} | MODELS[model],
            "sampler": {"name": "in_batch"},
            "train": {"batch_size": batch, "threads": 1},
        }
    )
    recipe = resolve(recipe, dataset)
    trainer, batches = build_trainer(recipe, dataset), draw_batches(recipe.train, dataset)
    return lambda: trainer.train_step(next(batches))


def milliseconds(step: Callable[[], object], *, faster: bool) -> float:
    """CPU time of a step."""
    vars(products)["has_faster_library"] = lambda: faster
    step()
    began = time.process_time()
    for _ in range(STEPS):
        step()
    return 1000 * (time.process_time() - began) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--batches", default="256,1024")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = open_dataset(options.dataset)
    print("| step | batch | MKL, ms | oneDNN, ms | ratio |\n|---|---|---|---|---|")
    for batch in map(int, options.batches.split(",")):
        for model in MODELS:
            step = steps_of(model, batch, dataset)
            for _ in range(WARM_UP):
                step()
            turns = [
                [milliseconds(step, faster=faster) for faster in (False, True)]
                for _ in range(options.turns)
            ]
            without, with_it = (median(turn[i] for turn in turns) for i in (0, 1))
            ratio = f"{without / with_it:.2f} ×"
            print(f"| {model} | {batch:,} | {without:.1f} | {with_it:.1f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
