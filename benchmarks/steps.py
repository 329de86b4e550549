"""Time of a training step of every recipe of the paper, data loading included.

    crossbatch synth --users 603668 --items 367982 --interactions 8898041 --out full
    python benchmarks/steps.py --data full

Recipes take turns, so that a busy machine slows all of them alike. CPU time of one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.training.assemble import build_trainer, resolve
from crossbatch.training.run import environment

RECIPES = Path(__file__).parent.parent / "recipes" / "paper"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="dataset folder")
    parser.add_argument("--warmup", type=int, default=600, help="steps before timing starts")
    parser.add_argument("--rounds", type=int, default=10, help="interleaved rounds")
    parser.add_argument("--steps", type=int, default=20, help="steps of a recipe in a round")
    parser.add_argument("--set", action="append", default=[], help="override of the recipes")
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/steps.json"))
    options = parser.parse_args()
    if options.quick:
        options.warmup, options.rounds, options.steps = 2, 1, 2
    torch.set_num_threads(1)
    dataset = open_dataset(options.data)

    runs = {}
    for path in sorted(RECIPES.glob("*.toml")):
        # The bank is read from the first step on: warm-up would be timed as in-batch.
        recipe = Recipe.load(path, options.set)
        if recipe.sampler["name"] == "cross_batch":
            recipe = Recipe.load(path, [*options.set, "sampler.warmup_steps=0"])
        trainer = build_trainer(resolve(recipe, dataset), dataset)
        batches = dataset.batches(
            recipe.train.batch_size, seed=0, history_length=recipe.train.history_length
        )
        for _ in range(options.warmup):
            trainer.train_step(next(batches))
        runs[path.stem] = (trainer, batches)
        print(f"{path.stem} is warm", flush=True)

    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, (trainer, batches) in runs.items():
            start = time.process_time()
            for _ in range(options.steps):
                trainer.train_step(next(batches))
            times[name].append(1000 * (time.process_time() - start) / options.steps)

    print("| recipe | CPU ms per step | quartiles |\n|---|---|---|")
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        print(f"| {name} | {middle:.1f} | {low:.1f}-{high:.1f} |")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    document = {"environment": environment(), "milliseconds": times, "overrides": options.set}
    options.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
