"""The whole path at the paper's size, command by command: processor time and peak memory of each.

    python benchmarks/whole_path.py --work work --dims 64 256      # an hour and more
    python benchmarks/whole_path.py --work work --quick            # a smoke run

A raw log of the shape of Amazon-Books (459,133 users, 313,966 items, 8.9 M interactions) is
generated; then `prepare`, `train` with the default recipe, `evaluate` on all test users, `export`,
and `serve` for some requests. Times are those of the processor, user and system, on as many threads
as each command takes by itself. Peak memory is the largest resident set, mapped files included.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from crossbatch.data import open_dataset
from measure.machine import describe
from measure.report import header, table_line
from measure.shape import FULL, TINY

COMMAND = (sys.executable, "-m", "crossbatch")
REQUESTS = 500


def measured(process: subprocess.Popen[Any], command: str) -> dict[str, float]:
    """Wait for a process: its seconds and megabytes."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 130):  # 130 after Ctrl-C
        sys.exit(f"{command} ended with {process.returncode}")
    return {"cpu": usage.ru_utime + usage.ru_stime, "mb": usage.ru_maxrss / 1024}


def run(*words: object) -> dict[str, float]:
    """Run a command of crossbatch to its end."""
    command = [*COMMAND, *map(str, words), "--quiet"]
    began = time.perf_counter()
    found = measured(subprocess.Popen(command), " ".join(command))
    found["wall"] = time.perf_counter() - began
    print(" ".join(map(str, words)), found, flush=True)
    return found


def serve(bundle: Path, history: list[str]) -> dict[str, float]:
    """Start the server, ask it `REQUESTS` times, stop it."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [*COMMAND, "serve", str(bundle), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    address = None
    while address is None:
        line = process.stdout.readline()
        if not line:
            sys.exit("the server ended before it was ready")
        address = re.search(r"http://[\d.]+:\d+", line)
    body = json.dumps({"history": history, "k": 20}).encode()
    for _ in range(REQUESTS):
        request = urllib.request.Request(
            f"{address.group()}/recommend", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            answer.read()
    seconds = time.perf_counter() - began
    process.send_signal(signal.SIGINT)
    return measured(process, "serve") | {"wall": seconds}


def path(dim: int, data: Path, work: Path, settings: list[str]) -> dict[str, dict[str, float]]:
    """Everything after `prepare` for vectors of one width."""
    folder, bundle = work / f"run-{dim}", work / f"bundle-{dim}"
    for each in (folder, bundle):
        shutil.rmtree(each, ignore_errors=True)
    words = [f"model.dim={dim}", *settings]
    chosen = [word for setting in words for word in ("--set", setting)]
    found = {"train": run("train", "--data", data, "--out", folder, *chosen)}
    found["evaluate"] = run("evaluate", folder, "--baselines", "none")
    found["export"] = run("export", folder, "--out", bundle)
    history = open_dataset(data).item_keys(range(1, 21))
    found[f"serve, {REQUESTS} requests"] = serve(bundle, history)
    result = json.loads((folder / "result.json").read_text())
    found["result"] = {"steps": result["steps"], **result["test_unseen"]}
    return found


def markdown(document: dict[str, Any]) -> str:
    """A line for each command."""
    lines = header("command", "d", "CPU min", "wall min", "peak MB")
    rows = [("prepare", "", document["prepare"])]
    for dim, found in document["dims"].items():
        rows += [(name, dim, cost) for name, cost in found.items() if name != "result"]
    for name, dim, cost in rows:
        cells = [f"{cost['cpu'] / 60:.1f}", f"{cost['wall'] / 60:.1f}", f"{cost['mb']:,.0f}"]
        lines.append(table_line(name, dim, *cells))
    for dim, found in document["dims"].items():
        total = sum(cost["cpu"] for name, cost in found.items() if name != "result")
        total += document["prepare"]["cpu"]
        lines.append(table_line("**all**", dim, f"{total / 60:.1f}", "", ""))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the log and the runs")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--set", nargs="+", default=[], help="settings of all trainings")
    parser.add_argument(
        "--held-out", type=float, default=0.1, help="share of validation and of test users"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    size = TINY if options.quick else FULL
    raw, data = options.work / "raw", options.work / "dataset"
    if not raw.exists():
        run("synth", "--raw", raw, *(w for k, v in size.items() for w in (f"--{k}", v)))
    shutil.rmtree(data, ignore_errors=True)
    shares = ("--valid-share", options.held_out, "--test-share", options.held_out)
    prepared = run("prepare", raw, "--out", data, *shares)
    settings = [*options.set, *(["train.max_steps=20"] if options.quick else [])]
    dims = options.dims[:1] if options.quick else options.dims
    document = {
        "machine": describe(),
        "quick": options.quick,
        "settings": settings,
        "held_out": options.held_out,
        "prepare": prepared,
        "dims": {str(dim): path(dim, data, options.work, settings) for dim in dims},
    }
    print(markdown(document))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "whole_path.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
