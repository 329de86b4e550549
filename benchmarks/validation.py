"""Cost of a validation pass in training steps: exact ranking of the catalogue for many users.

    python benchmarks/validation.py                # three models at the full Amazon-Books shape
    python benchmarks/validation.py --quick        # a smoke run: numbers mean nothing

Steps of cross-batch sampling on one thread, and passes over choices of the validation users on one
and on all, take turns. Training validates with `train.eval_users` users (5,000 by default)
on all threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crossbatch.config import TrainConfig
from crossbatch.evaluation import evaluate
from crossbatch.training.build import draw_batches
from crossbatch.training.threads import using
from measure.floor import Shape
from measure.machine import describe
from measure.report import header, table_line
from measure.shape import FULL, MODELS, TINY, generated, recipe, trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.data import Dataset

USERS = (1_000, TrainConfig().eval_users)
STEPS, WARMUP, EVAL_EVERY = 64, 24, TrainConfig().eval_every
CORES = torch.get_num_threads()  # torch's default number of threads


def measured(model: str, dataset: Dataset, users: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Median seconds of a step, and of passes over numbers of users on one thread and on all."""
    shape = Shape()
    setting = recipe(model, "cross_batch", shape)
    chosen, batches = trainer(setting, dataset), draw_batches(setting.train, dataset)
    counts = np.array(dataset.item_counts)

    def steps(count: int) -> None:
        for _ in range(count):
            chosen.train_step(next(batches))

    def validate(count: int) -> None:
        split = dataset.eval_batches("valid", history_length=shape.L, max_users=count)
        evaluate(chosen.model, split, item_counts=counts)  # type: ignore[arg-type]

    steps(WARMUP)
    step_times: list[float] = []
    pass_times: dict[tuple[int, int], list[float]] = {
        (count, threads): [] for count in users for threads in (1, CORES)
    }
    for _ in range(rounds):
        step_times.append(seconds(partial(steps, STEPS)) / STEPS)
        for (count, threads), times in pass_times.items():
            with using(threads):
                times.append(seconds(partial(validate, count)))
    passes = {key: statistics.median(times) for key, times in pass_times.items()}
    return {
        "step": statistics.median(step_times),
        "passes": {count: passes[count, 1] for count in users},
        "on all threads": {count: passes[count, CORES] for count in users},
    }


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def markdown(document: dict[str, Any]) -> str:
    """One line a model and number of users."""
    threads = f"s on {document['threads']} threads"
    lines = header("model", "users", "s on one thread", threads, f"÷ {EVAL_EVERY:,} steps")
    for model, row in document["models"].items():
        for users, alone in row["passes"].items():
            taken = row["on all threads"][users]
            cells = [f"{int(users):,}", f"{alone:.2f}", f"{taken:.2f}"]
            lines.append(table_line(model, *cells, f"{taken / row['step'] / EVAL_EVERY:.2f}"))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="dataset folder; generated where absent")
    parser.add_argument("--users", type=int, nargs="+", default=USERS, help="of a pass")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    if options.quick:
        options.users, options.rounds = [100], 1
    torch.set_num_threads(1)  # of the steps
    options.out.mkdir(parents=True, exist_ok=True)
    data = options.data or options.out / ("data-tiny" if options.quick else "data-full")
    dataset = generated(data, TINY if options.quick else FULL)
    document = {
        "machine": describe(),
        "quick": options.quick,
        "threads": CORES,
        "valid_users": dataset.num_eval_users("valid"),
        "models": {
            model: measured(model, dataset, tuple(options.users), options.rounds)
            for model in MODELS
        },
    }
    print(markdown(document))
    (options.out / "validation.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
