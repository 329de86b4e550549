"""What a validation pass costs, in training steps: exact ranking of the catalogue for many users.

    python benchmarks/validation.py                # three models at the full Amazon-Books shape
    python benchmarks/validation.py --quick        # a smoke run: numbers mean nothing

CPU seconds of one thread: steps of cross-batch sampling and passes over choices of the validation
users take turns. Training validates with `train.eval_users`, 5,000 unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crossbatch.config import TrainConfig
from crossbatch.evaluation import evaluate
from measure.floor import Shape
from measure.machine import describe
from measure.report import header, table_line
from measure.shape import FULL, MODELS, TINY, generated, recipe, trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.data import Dataset

USERS = (1_000, TrainConfig().eval_users)
STEPS, WARMUP, EVAL_EVERY = 64, 24, TrainConfig().eval_every


def measured(model: str, dataset: Dataset, users: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Median CPU seconds of a step and of a pass over each number of users."""
    shape = Shape()
    chosen = trainer(recipe(model, "cross_batch", shape), dataset)
    batches = dataset.batches(shape.B, seed=0, history_length=shape.L)
    counts = np.array(dataset.item_counts)

    def steps(count: int) -> None:
        for _ in range(count):
            chosen.train_step(next(batches))

    def validate(count: int) -> None:
        split = dataset.eval_batches("valid", history_length=shape.L, max_users=count)
        evaluate(chosen.model, split, item_counts=counts)  # type: ignore[arg-type]

    steps(WARMUP)
    step_times: list[float] = []
    pass_times: dict[int, list[float]] = {count: [] for count in users}
    for _ in range(rounds):
        step_times.append(cpu_seconds(lambda: steps(STEPS)) / STEPS)
        for count, times in pass_times.items():
            times.append(cpu_seconds(lambda count=count: validate(count)))  # type: ignore[misc]
    return {
        "step": statistics.median(step_times),
        "passes": {count: statistics.median(times) for count, times in pass_times.items()},
    }


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def markdown(document: dict[str, Any]) -> str:
    """One line a model and number of users."""
    lines = header("model", "users", "CPU s", "as many steps", f"÷ {EVAL_EVERY:,} steps")
    for model, row in document["models"].items():
        for users, seconds in row["passes"].items():
            steps = seconds / row["step"]
            cells = [f"{int(users):,}", f"{seconds:.2f}", f"{steps:,.0f}"]
            lines.append(table_line(model, *cells, f"{steps / EVAL_EVERY:.2f}"))
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
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    data = options.data or options.out / ("data-tiny" if options.quick else "data-full")
    dataset = generated(data, TINY if options.quick else FULL)
    document = {
        "machine": describe(),
        "quick": options.quick,
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
