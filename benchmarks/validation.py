"""Cost of a validation pass in training steps: exact ranking of the catalogue for many users.

    python benchmarks/validation.py                # five towers, 38,000 to a million items
    python benchmarks/validation.py --data shop    # prepared datasets instead of generated ones
    python benchmarks/validation.py --quick        # a smoke run: numbers mean nothing

Recipes are the defaults with a named tower and in-batch negatives, the cheapest of all. Steps take
turns with validation passes, every `train.eval_every` steps in training. Processor seconds of one
thread decide; training validates on all, whose time by the clock stands beside them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.config import Recipe, TrainConfig
from crossbatch.evaluation.runs import RunEvaluator
from crossbatch.training.auto_model import CANDIDATES, with_width
from crossbatch.training.build import build_trainer, draw_batches, resolve
from crossbatch.training.threads import using
from measure.machine import describe
from measure.report import header, table_line
from measure.shape import FULL, TINY, generated

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.data import Dataset

RACED = {str(each["model"]["name"]): each for each in CANDIDATES.values()}
TOWERS: dict[str, dict[str, Any]] = RACED | {
    name: {"model": {"name": name}} for name in ("gru4rec", "mind", "sasrec")
}
SIZES = {
    "data-small": {"users": 38_000, "items": 38_000, "interactions": 517_000},
    "data-full": FULL,
    "data-million": {"users": 400_000, "items": 1_000_000, "interactions": 6_000_000},
}
USERS = TrainConfig().eval_users  # of the aim
STEPS, WARMUP, EVAL_EVERY = 32, 48, TrainConfig().eval_every
COMPILING = 100  # users of a pass before all others
MOST = 0.5  # of the steps between two evaluations
CORES = torch.get_num_threads()  # torch's default number of threads


def measured(
    tower: str, dataset: Dataset, users: tuple[int, ...], rounds: int
) -> list[dict[str, Any]]:
    """Median seconds of a step, and of passes over numbers of users on one thread and on all."""
    asked = Recipe.from_dict({"sampler": {"name": "in_batch"}} | TOWERS[tower])
    recipe = resolve(with_width(asked, dataset), dataset)
    trainer, evaluator = build_trainer(recipe, dataset), RunEvaluator(dataset, recipe)
    batches = draw_batches(recipe.train, dataset)

    def steps(count: int) -> None:
        for _ in range(count):
            trainer.train_step(next(batches))

    steps(WARMUP)
    evaluator.validate(trainer.model, COMPILING)
    step_times: list[float] = []
    pass_times: dict[int, list[float]] = {count: [] for count in users}
    clock_times: dict[int, list[float]] = {count: [] for count in users}
    for _ in range(rounds):
        step_times.append(seconds(partial(steps, STEPS), time.process_time) / STEPS)
        for count in users:
            validate = partial(evaluator.validate, trainer.model, count)
            pass_times[count].append(seconds(validate, time.process_time))
            if CORES > 1:
                with using(CORES):
                    clock_times[count].append(seconds(validate, time.perf_counter))
    return [
        {
            "tower": tower,
            "items": dataset.num_items,
            "dim": recipe.model.dim,
            "users": min(count, dataset.num_eval_users("valid")),
            "step": statistics.median(step_times),
            "pass": statistics.median(pass_times[count]),
            "clock": statistics.median(clock_times[count]) if CORES > 1 else None,
        }
        for count in users
    ]


def seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


def markdown(document: dict[str, Any]) -> str:
    """One line a tower, catalogue and number of users; the aim is that of the default number."""
    threads = document["threads"]
    clock = [f"s on {threads} threads"] if threads > 1 else []
    between = f"CPU s of {EVAL_EVERY:,} steps"
    lines = header("tower", "items", "d", "users", between, "of a pass", *clock, "÷ steps", "aim")
    for row in document["rows"]:
        steps = row["step"] * EVAL_EVERY
        share = row["pass"] / steps
        cells = [f"{row[name]:,}" for name in ("items", "dim", "users")]
        cells += [f"{steps:.1f}", f"{row['pass']:.2f}"]
        cells += [f"{row['clock']:.2f}"] if clock else []
        cells += [f"{share:.2f}"]
        aimed = row["users"] <= USERS
        aim = f"≤ {MOST}: {'ok' if share <= MOST else 'missed'}" if aimed else ""
        lines.append(table_line(row["tower"], *cells, aim))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, nargs="+", help="dataset folders; else generated")
    parser.add_argument("--towers", nargs="+", choices=TOWERS, default=list(TOWERS))
    parser.add_argument("--users", type=int, nargs="+", default=[USERS], help="of a pass")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    sizes = SIZES
    if options.quick:
        options.users, options.rounds, sizes = [100], 1, {"data-tiny": TINY}
    torch.set_num_threads(1)  # of the steps
    options.out.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "machine": describe(),
        "quick": options.quick,
        "threads": CORES,
        "rows": [],
    }
    for folder in options.data or [options.out / name for name in sizes]:
        dataset = generated(folder, sizes.get(folder.name, TINY))
        for tower in options.towers:
            found = measured(tower, dataset, tuple(options.users), options.rounds)
            document["rows"] += found
            print(*(json.dumps(row) for row in found), sep="\n", flush=True)
    print(markdown(document))
    (options.out / "validation.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
