"""CPU time of a step with `auto` compared with an in-batch step on the same batches.

    python benchmarks/auto_cost.py book-1m ml-1m --recipe amazon-book-1m

Processor time of a step on one thread, including loading its batch. The two alternate in blocks of
steps, so that a busy machine slows both. The ratio is that of the medians over blocks, with the
quartiles of the ratios of single blocks.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

import torch

from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.training.auto_sampler import choose_sampler
from crossbatch.training.build import build_trainer, draw_batches, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crossbatch.data import Batch, Dataset
    from crossbatch.training.step import Trainer

HEADS = ("data", "model", "auto took", "in-batch ms", "auto ms", "ratio", "quartiles")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="dataset folders")
    parser.add_argument("--recipe", required=True, help="recipe of all runs")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--models", default="youtube_dnn,gru4rec,mind")
    parser.add_argument("--blocks", type=int, default=15, help="blocks of each of the two")
    parser.add_argument("--steps", type=int, default=100, help="steps in a block")
    return parser.parse_args()


def block(trainer: Trainer, batches: Iterator[Batch], steps: int) -> float:
    """Milliseconds per step of one block."""
    start = time.process_time()
    for _ in range(steps):
        trainer.train_step(next(batches))
    return 1e3 * (time.process_time() - start) / steps


def compare(dataset: Dataset, recipe: Recipe, blocks: int, steps: int) -> tuple[str, ...]:
    """Time both and return one row of the table."""
    advice = choose_sampler(replace(recipe, sampler={"name": "auto"}), dataset)
    sides: list[tuple[Trainer, Iterator[Batch], list[float]]] = []
    for chosen in (replace(recipe, sampler={"name": "in_batch"}), advice.applied_to(recipe)):
        trainer = build_trainer(resolve(chosen, dataset), dataset)
        batches = draw_batches(recipe.train, dataset, seed=0, later=trainer.mask_later)
        block(trainer, batches, 2 * steps)  # fills banks and warms caches
        sides.append((trainer, batches, []))
    for _ in range(blocks):
        for trainer, batches, taken in sides:
            taken.append(block(trainer, batches, steps))
    plain, auto = (taken for _, _, taken in sides)
    low, _, high = quantiles([a / p for a, p in zip(auto, plain, strict=True)], n=4)
    count = [v for k, v in advice.sampler.items() if k != "name"]
    took = " ".join(str(word) for word in (advice.sampler["name"], *count, *advice.loss))
    ratio = median(auto) / median(plain)
    return (
        dataset.path.name, recipe.model.name, took,
        f"{median(plain):.2f}", f"{median(auto):.2f}", f"{ratio:.2f}", f"{low:.2f}–{high:.2f}",
    )  # fmt: skip


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS))
    for path in options.data:
        dataset = open_dataset(path)
        for model in options.models.split(","):
            own = [f"model.name={model}", "train.threads=1", *options.overrides]
            recipe = Recipe.load(options.recipe, own)
            row = compare(dataset, recipe, options.blocks, options.steps)
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
