"""What the first run after installation costs besides: CPU seconds of compiling, for each tower.

    python benchmarks/first_use.py                         # minutes; generates a small dataset
    python benchmarks/first_use.py --models gru4rec mind

For each tower a whole short run of `crossbatch train` is started twice: with an empty cache of
compiled functions, and with the one that this filled. The difference is what a first use costs
more: until the end of the first step, and until the end of the run, in which evaluation compiles a
few functions of its own. CPU seconds of the whole process, user and system, on one thread; medians
over turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measure.shape import TINY, generated

MODELS = ("recent_items", "youtube_dnn", "gru4rec", "mind", "sasrec")
STEPS, BATCH = 20, 256

# The command `crossbatch`, in which the end of the first step leaves a note of the CPU seconds.
COMMAND = """
import json, sys, time
from crossbatch.cli import main
from crossbatch.training.step import Trainer

taken, step = [], Trainer.train_step

def noted(trainer, batch):
    record = step(trainer, batch)
    if not taken:
        taken.append(time.process_time())
    return record

Trainer.train_step = noted
try:
    main()
finally:
    print(json.dumps([*taken, time.process_time()]))
"""


def cpu_seconds(words: list[str], cache: Path) -> tuple[float, float]:
    """Until the first step and in all, with compiled functions kept in `cache`."""
    variables = {"NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        check=True,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    first_step, all_of_it = json.loads(done.stdout.splitlines()[-1])
    return first_step, all_of_it


def training(model: str, data: Path, out: Path) -> list[str]:
    """A short run of a tower with the defaults."""
    values = {
        "model.name": model,
        "train.max_steps": STEPS,
        "train.batch_size": BATCH,
        "train.threads": 1,
        "sampler.name": "cross_batch",
    }
    words = [f"{key}={value}" for key, value in values.items()]
    options = [word for value in words for word in ("--set", value)]
    return ["train", "--quiet", "--data", str(data), "--out", str(out), *options]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "out" / "data-tiny")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=3, help="turns of every tower")
    options = parser.parse_args()
    generated(options.data, TINY)
    print("| tower | to the first step, CPU s | first use adds | whole run | first use adds |")
    print("|---|---|---|---|---|")
    for model in options.models:
        turns = [turn(model, options.data) for _ in range(options.rounds)]
        cells = []
        for i in range(2):
            after = median(warm[i] for _, warm in turns)
            added = median(first[i] - warm[i] for first, warm in turns)
            cells.append(f"{after:.1f} | {added:.1f}")
        print(f"| {model} | {' | '.join(cells)} |", flush=True)


def turn(model: str, data: Path) -> list[tuple[float, float]]:
    """`cpu_seconds` of a first run, and of one after it."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            cpu_seconds(training(model, data, Path(folder) / name), Path(folder) / "cache")
            for name in ("first", "again")
        ]


if __name__ == "__main__":
    main()
