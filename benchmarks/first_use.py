"""What the first run after installation costs besides: CPU seconds of compiling, for each tower.

    python benchmarks/first_use.py                         # minutes; generates a small dataset
    python benchmarks/first_use.py --models gru4rec mind

For each tower a whole short run of `crossbatch train` is started twice: with an empty cache of
compiled functions, and with the one that this filled. The difference is what a first use costs
more. CPU seconds of the whole process, user and system, on one thread.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from measure.shape import TINY, generated

MODELS = ("recent_items", "youtube_dnn", "gru4rec", "mind", "sasrec")
STEPS, BATCH = 20, 256


def cpu_seconds(command: list[str], cache: Path) -> float:
    """Of a command whose compiled functions are kept in `cache`."""

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    began = used()
    variables = {"NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=os.environ | variables)
    return used() - began


def command(model: str, data: Path, out: Path) -> list[str]:
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
    start = [sys.executable, "-m", "crossbatch", "train", "--quiet"]
    return [*start, "--data", str(data), "--out", str(out), *options]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "out" / "data-tiny")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    options = parser.parse_args()
    generated(options.data, TINY)
    print("| tower | empty cache, CPU s | filled, CPU s | first use, CPU s |\n|---|---|---|---|")
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder) / "cache"
            first, again = (
                cpu_seconds(command(model, options.data, Path(folder) / name), cache)
                for name in ("first", "again")
            )
        print(f"| {model} | {first:.1f} | {again:.1f} | {first - again:.1f} |", flush=True)


if __name__ == "__main__":
    main()
