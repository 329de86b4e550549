"""Peak memory of `crossbatch train` at the full Amazon-Books shape, and the time to open a dataset.

    python benchmarks/memory.py                # three models, a validation pass each: minutes
    python benchmarks/memory.py --quick        # a smoke run on a tiny dataset

Each training is a process of its own: 200 steps of cross-batch sampling, a validation pass, the
checkpoint of the best model; then Ctrl-C, which writes one more checkpoint. The peak is the largest
resident set that the system saw, memory-mapped files included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from crossbatch.data import open_dataset
from measure.floor import HIDDEN
from measure.machine import describe
from measure.report import header, table_line
from measure.shape import FULL, MODELS, TINY, generated

TARGET_MB = 1_200
POLL_SECONDS = 0.2


def train(model: str, data: Path, run: Path, steps: int) -> dict[str, float]:
    """Train until the first validation is in the journal; peak memory and seconds."""
    shutil.rmtree(run, ignore_errors=True)
    settings = [
        'model.item_features=["category"]',
        "model.history=content",
        f"model.item={{hidden = [{HIDDEN}], feature_dims = {{category = 64}}}}",
        "sampler.warmup_steps=0",
        f"train.eval_every={steps}",
    ]
    recipe = f"paper/{model}-cross_batch"
    command = [sys.executable, "-m", "crossbatch", "train", "--recipe", recipe, "--quiet"]
    command += ["--data", str(data), "--out", str(run)]
    command += [word for setting in settings for word in ("--set", setting)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    seconds = None
    while True:
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        if seconds is None and evaluated(run / "journal.jsonl"):
            seconds = time.perf_counter() - start
            os.kill(process.pid, signal.SIGINT)
        time.sleep(POLL_SECONDS)
    process.returncode = os.waitstatus_to_exitcode(status)
    shutil.rmtree(run, ignore_errors=True)
    if seconds is None:
        sys.exit(f"no validation came of: {' '.join(command)}")
    return {"peak_mb": usage.ru_maxrss / 1024, "seconds": seconds}


def evaluated(journal: Path) -> bool:
    """Whether the journal has a validation pass."""
    if not journal.exists():
        return False
    return any('"eval"' in line for line in journal.read_text().splitlines())


def opening(data: Path, repeats: int = 20) -> float:
    """Median seconds to open a dataset."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        open_dataset(data)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def markdown(document: dict[str, Any]) -> str:
    """One line a model, and the time to open the dataset."""
    lines = header("training of", "peak MB", "aim", "")
    for model, row in document["training"].items():
        verdict = "ok" if row["peak_mb"] <= TARGET_MB else "missed"
        lines.append(table_line(model, f"{row['peak_mb']:,.0f}", f"≤ {TARGET_MB:,}", verdict))
    seconds = document["opening_seconds"]
    return "\n".join([*lines, f"\nThe dataset opens in {1e3 * seconds:.1f} ms."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="dataset folder; generated where absent")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--steps", type=int, default=200, help="before the validation pass")
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    if options.quick:
        options.models, options.steps = options.models[:1], 5
    options.out.mkdir(parents=True, exist_ok=True)
    data = options.data or options.out / ("data-tiny" if options.quick else "data-full")
    generated(data, TINY if options.quick else FULL)
    seconds = opening(data)
    training = {
        model: train(model, data, options.out / f"memory-{model}", options.steps)
        for model in options.models
    }
    document: dict[str, Any] = {
        "machine": describe(),
        "quick": options.quick,
        "opening_seconds": seconds,
        "training": training,
    }
    print(markdown(document))
    (options.out / "memory.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
