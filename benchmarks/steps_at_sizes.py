"""Steps at the sizes of real trainings, on one thread and on two, beside their floor and others.

    python benchmarks/steps_at_sizes.py                    # at most 25 minutes; again to go on
    python benchmarks/steps_at_sizes.py --only "sasrec .* 1024 64 "
    python benchmarks/steps_at_sizes.py --quick            # a smoke run: numbers mean nothing

Five user towers over id and category vectors, items through an MLP as in `steps.py`, a catalogue
of 100,000 items, full histories. One and two threads take turns in a process, which also measures
the speeds of the floor (`measure/floor.py`) on one thread: that of `torch.mm`, and that of the
faster of torch's two libraries, for a stricter floor. The time on one thread is that of the
processor, the gain of two is by the wall clock. Plain PyTorch and TFRS take turns with YouTube DNN
and in-batch negatives, on one thread. Rows that stand in the record are not measured again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from measure.floor import Shape, Speed, work
from measure.machine import PROBES, describe
from measure.points import CATEGORIES, distinct_rows, popular
from measure.report import header, table_line
from measure.workers import ROOT, Process, Worker, peer_python

TOWERS = ("youtube_dnn", "recency", "gru4rec", "mind", "sasrec")
NUM_ITEMS = 100_000
SECONDS = 0.7  # of a turn, at least two steps
# Samplers, batches, dimensions and histories, crossed in each line.
GRID = (
    (("in_batch",), (1024, 128, 4096), (64, 256), (20,)),
    (("cross_batch", "mixed"), (1024, 128), (64, 256), (20,)),
    (("in_batch",), (1024, 128), (64, 256), (100,)),
    (("cross_batch", "mixed"), (4096,), (64,), (20,)),
    (("cross_batch", "mixed"), (1024,), (64,), (100,)),
)
QUICK = ((("in_batch",), (32,), (16,), (5,)),)
# Label → module of peers/, its environment (None: our own), what the module calls it.
PEERS = {
    "plain PyTorch": ("step_plain_torch", None, "plain PyTorch, SparseAdam"),
    "TFRS": ("step_tfrs", "tfrs", "TFRS, Adagrad"),
}
PEER_BATCHES = 16  # that peers step on

# Runs in a process of its own; a line is a row, answered with CPU and wall seconds of a step.
WORKER = """
import json, sys, time
import torch
from measure.floor import Shape
from measure.machine import probe
from measure.points import Point

steps = {}
for line in sys.stdin:
    row, threads, seconds = json.loads(line)
    name = json.dumps(row)
    torch.set_num_threads(threads)
    if name not in steps:
        if isinstance(row, str):
            steps[name] = probe(row)
        else:
            model, sampler, B, d, L = row
            steps[name] = Point(model, sampler, Shape(B=B, d=d, L=L), int(sys.argv[1])).prepared()
        steps[name]()
    step = steps[name]
    step()
    count, cpu, wall = 0, time.process_time(), time.perf_counter()
    while count < 2 or time.perf_counter() - wall < seconds:
        step()
        count += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps([cpu / count, wall / count]), flush=True)
"""


def measured(row: list[Any], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """A row on one thread and on two, its floor, and peers that do the same."""
    model, sampler, B, d, L = row
    worker = Process([sys.executable, "-c", WORKER, str(options.items)], threads=2)
    peers = {}
    if (model, sampler) == ("youtube_dnn", "in_batch") and not options.no_peers:
        peers = started_peers(B, d, L, options)
    taken: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    probes: dict[str, list[float]] = {name: [] for name in PROBES}
    others: dict[str, list[float]] = {label: [] for label in peers}
    for _ in range(options.rounds):
        for threads, found in taken.items():
            found.append(worker.ask([row, threads, seconds]))
        for name, times in probes.items():
            times.append(worker.ask([name, 1, 0.0])[0])
        for label, peer in peers.items():
            name = PEERS[label][2]
            once, _ = peer.steps(name, 2)
            others[label].append(peer.steps(name, max(2, int(seconds / once)))[0])
    for process in (worker, *peers.values()):
        process.close()
    rates = {name: amount / median(probes[name]) for name, amount in PROBES.items()}
    shape = Shape(B=B, d=d, L=L)
    least = work(model, sampler, shape, B * L, distinct_rows(shape, sampler, options.items))
    floor, strict = (
        least.seconds(Speed(rates[name], rates["copy"], 1 / rates["exp"]))["floor"]
        for name in ("GEMM", "best GEMM")
    )
    return {
        "row": row,
        "cpu": median(cpu for cpu, _ in taken[1]),
        "floor": floor,
        "strict": strict,
        "gain": median(one[1] / two[1] for one, two in zip(taken[1], taken[2], strict=True)),
        "peers": {label: median(times) for label, times in others.items()},
    }


def started_peers(B: int, d: int, L: int, options: argparse.Namespace) -> dict[str, Worker]:
    """Workers of the peers at these sizes, warm."""
    folder = options.out.resolve() / f"samples-{B}-{L}"
    folder.mkdir(exist_ok=True)
    rows = PEER_BATCHES * B
    np.save(folder / "history.npy", popular(options.items, rows * L).view(rows, L).numpy())
    np.save(folder / "items.npy", popular(options.items, rows).numpy())
    np.save(folder / "categories.npy", torch.randint(CATEGORIES, (options.items + 1,)).numpy())
    found = {}
    for label, (module, environment, name) in PEERS.items():
        if environment and options.no_tfrs:
            continue
        python = peer_python(environment, options.venvs) if environment else Path(sys.executable)
        words, log = ["--samples", str(folder)], options.out / f"{module}.log"
        sizes = {"PEER_BATCH": str(B), "PEER_DIM": str(d)}
        found[label] = Worker(python, f"peers.{module}", words, threads=1, log=log, **sizes)
        found[label].prepare(name, 20, 3.0)
    return found


COLUMNS = ("tower", "negatives", "batch", "d", "history", "CPU ms", "floor ms")
HEADER = header(
    *COLUMNS, "÷ floor", "÷ strict floor", "two threads", *(f"{x} ÷ ours" for x in PEERS)
)


def markdown(document: dict[str, Any]) -> str:
    """The table of a record."""
    return "\n".join([*HEADER, *map(line, document["rows"])])


def line(found: dict[str, Any]) -> str:
    model, sampler, B, d, L = found["row"]
    cells = [f"{1e3 * found[name]:.1f}" for name in ("cpu", "floor")]
    cells += [f"{found['cpu'] / found[name]:.2f}" for name in ("floor", "strict")]
    cells.append(f"{found['gain']:.2f} ×")
    peers = found.get("peers", {})
    cells += [f"{peers[x] / found['cpu']:.1f} ×" if x in peers else "" for x in PEERS]
    return table_line(model, sampler, f"{B:,}", str(d), str(L), *cells)


def wanted(options: argparse.Namespace) -> list[tuple[Any, ...]]:
    """Rows, the most telling first."""
    rows = [
        (model, *sizes)
        for grid in (QUICK if options.quick else GRID)
        for sizes in product(*grid)
        for model in TOWERS
    ]
    return [row for row in rows if re.search(options.only, " ".join(map(str, row)) + " ")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=NUM_ITEMS)
    parser.add_argument("--only", default="", help="rows that this expression finds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=25.0, help="no new row after so many")
    parser.add_argument("--no-peers", action="store_true", help="only our rows and the floor")
    parser.add_argument("--no-tfrs", action="store_true", help="plain PyTorch alone beside ours")
    parser.add_argument("--venvs", type=Path, default=ROOT, help="folder of the environments")
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    if options.quick:
        options.items, options.rounds, options.no_tfrs = 1_000, 1, True
    print("\n".join(HEADER))
    options.out.mkdir(parents=True, exist_ok=True)
    record, rows = options.out / "steps_at_sizes.json", []
    if record.exists() and not options.quick:
        rows = json.loads(record.read_text())["rows"]
    known, end = {tuple(found["row"]): found for found in rows}, time.time() + 60 * options.minutes
    left = 0
    for row in wanted(options):
        if row not in known:
            if time.time() > end:
                left += 1
                continue
            known[row] = measured(list(row), options, 0.0 if options.quick else SECONDS)
            document = {"machine": describe(), "quick": options.quick}
            document["rows"] = list(known.values())
            record.write_text(json.dumps(document, indent=1))
        print(line(known[row]), flush=True)
    if left:
        print(f"{left} rows are left: the same command measures them")


if __name__ == "__main__":
    main()
