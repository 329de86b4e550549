"""Steps at the sizes of real trainings, on one thread and on two, beside their floor.

    python benchmarks/steps_at_sizes.py                    # half an hour on a quiet machine
    python benchmarks/steps_at_sizes.py --batches 1024 --dims 64 --only "sasrec|gru"
    python benchmarks/steps_at_sizes.py --quick            # a smoke run: numbers mean nothing

Five user towers over id and category vectors, items through an MLP as in `steps.py`, a catalogue
of 100,000 items, full histories. For each row processes with one and with two threads take turns;
the floor (`measure/floor.py`) is from speeds measured in turns with them on one thread: that of
`torch.mm`, and that of the faster of torch's two libraries, for a stricter floor. The time on one
thread is that of the processor, the gain of two is by the wall clock. Rows that stand in the record
already are not measured again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from measure.floor import Shape, Speed, work
from measure.machine import PROBES, describe
from measure.points import popular
from measure.report import header, table_line
from measure.workers import Process

TOWERS = ("youtube_dnn", "recency", "gru4rec", "mind", "sasrec")
SAMPLERS = ("in_batch", "cross_batch", "mixed")
NUM_ITEMS = 100_000
SECONDS = 2.0  # of a turn, at least two steps

# Runs in a process of its own; a line is a row, answered with CPU and wall seconds of a step.
WORKER = """
import json, sys, time
import torch
from measure.floor import Shape
from measure.machine import probe
from measure.points import Point

torch.set_num_threads(int(sys.argv[1]))
built, step = None, None
for line in sys.stdin:
    row, seconds = json.loads(line)
    if row != built:
        step = None  # the tables of the row before
        if isinstance(row, str):
            step = probe(row)
        else:
            model, sampler, B, d, L = row
            step = Point(model, sampler, Shape(B=B, d=d, L=L), int(sys.argv[2])).prepared()
        built = row
        for _ in range(3):
            step()
    count, cpu, wall = 0, time.process_time(), time.perf_counter()
    while count < 2 or time.perf_counter() - wall < seconds:
        step()
        count += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps([cpu / count, wall / count]), flush=True)
"""


def started(threads: int, num_items: int) -> Process:
    words = (str(threads), str(num_items))
    return Process([sys.executable, "-c", WORKER, *words], threads=threads)


def measured(row: list[Any], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """A row on one thread and on two, and its floor."""
    model, sampler, B, d, L = row
    workers = {threads: started(threads, options.items) for threads in (1, 2)}
    probing = started(1, options.items)
    taken: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    probes: dict[str, list[float]] = {name: [] for name in PROBES}
    for _ in range(options.rounds):
        for threads, worker in workers.items():
            taken[threads].append(worker.ask([row, seconds]))
        for name, found in probes.items():
            found.append(probing.ask([name, 0.0])[0])
    for worker in (*workers.values(), probing):
        worker.close()
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
    }


def distinct_rows(shape: Shape, sampler: str, num_items: int) -> int:
    """Rows of the id table that a batch like those of `measure.points` reads."""
    torch.manual_seed(0)
    read = [popular(num_items, shape.B * shape.L), popular(num_items, shape.B)]
    if sampler == "mixed":
        read.append(torch.randint(1, num_items + 1, (shape.num_uniform,)))
    return len(torch.cat(read).unique())


COLUMNS = ("tower", "negatives", "batch", "d", "history", "CPU ms", "floor ms")
HEADER = header(*COLUMNS, "÷ floor", "÷ strict floor", "two threads")


def markdown(document: dict[str, Any]) -> str:
    """The table of a record."""
    return "\n".join([*HEADER, *map(line, document["rows"])])


def line(found: dict[str, Any]) -> str:
    model, sampler, B, d, L = found["row"]
    cells = [f"{1e3 * found[name]:.1f}" for name in ("cpu", "floor")]
    cells += [f"{found['cpu'] / found[name]:.2f}" for name in ("floor", "strict")]
    cells.append(f"{found['gain']:.2f} ×")
    return table_line(model, sampler, f"{B:,}", str(d), str(L), *cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--histories", type=int, nargs="+", default=[20])
    parser.add_argument("--samplers", nargs="+", default=["in_batch"], choices=SAMPLERS)
    parser.add_argument("--items", type=int, default=NUM_ITEMS)
    parser.add_argument("--only", default="", help="towers that this expression finds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    sizes = (options.samplers, options.batches, options.dims, options.histories)
    if options.quick:
        sizes, options.items, options.rounds = (["in_batch"], [32], [16], [5]), 1_000, 1
    print("\n".join(HEADER))
    options.out.mkdir(parents=True, exist_ok=True)
    record, rows = options.out / "steps_at_sizes.json", []
    if record.exists() and not options.quick:
        rows = json.loads(record.read_text())["rows"]
    known = {tuple(found["row"]): found for found in rows}
    for sampler, B, d, L in product(*sizes):
        for model in TOWERS:
            if not re.search(options.only, model):
                continue
            row = (model, sampler, B, d, L)
            if row not in known:
                known[row] = measured(list(row), options, 0.0 if options.quick else SECONDS)
                document = {"machine": describe(), "quick": options.quick}
                document["rows"] = list(known.values())
                record.write_text(json.dumps(document, indent=1))
            print(line(known[row]), flush=True)


if __name__ == "__main__":
    main()
