"""Time of a training step next to other libraries and to the floor, in one interleaved run.

    python benchmarks/steps.py                            # all rows and peers: minutes
    python benchmarks/steps.py --peers none --only "youtube_dnn in_batch" --rounds 3
    python benchmarks/steps.py --quick                    # a smoke run: numbers mean nothing

Batch 128, d = 64, history 20, 313,966 items, id and category through MLPs; CPU time of a step on
one thread, the loading of its batch included; median and quartiles over turns.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

from measure.floor import Shape
from measure.machine import describe, probes
from measure.report import markdown, summary
from measure.shape import FULL, MODELS, SAMPLERS, TINY, count, generated
from measure.workers import Row, Worker, interleave

HERE = Path(__file__).parent
OUT = HERE / "out"
STEPS, WARMUP = 64, 24  # of a turn: whole blocks of batches; before timing: until the bank is full
# Adam's bias corrections settle in some 500 steps, and dense semantics cost more until then.
WARMUP_DENSE = 600
PROBE_CALLS = {"GEMM": 4, "copy": 2, "exp": 50}
FEW_DENSE = ("youtube_dnn", "in_batch")  # a pair with either of them has a dense row too


def our_rows(options: argparse.Namespace, python: Path, data: Path) -> list[Row]:
    """Probes, every model × sampler, some of them with dense Adam and with two threads."""
    arguments = ["--data", str(data)]
    script = HERE / "measure" / "ours.py"

    def worker(threads: int) -> Worker:
        words = [*arguments, "--threads", str(threads)]
        log = options.out / f"ours-{threads}.log"
        return Worker(python, script, words, threads=threads, log=log)

    one = worker(1)
    rows = [Row(name, one, name, PROBE_CALLS[name]) for name in probes()]
    pairs = list(product(MODELS, SAMPLERS))
    rows += [Row(f"{m} {s}", one, f"{m} {s} lazy", STEPS) for m, s in pairs]
    rows += [
        Row(f"{m} {s}, dense Adam", one, f"{m} {s} dense", STEPS)
        for m, s in pairs
        if m in FEW_DENSE or s in FEW_DENSE
    ]
    if options.threads > 1:
        more = worker(options.threads)
        rows += [
            Row(f"{m} {s}, {options.threads} threads", more, f"{m} {s} lazy", STEPS)
            for m, s in pairs
            if m in FEW_DENSE or s in FEW_DENSE
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="dataset folder; generated if absent")
    parser.add_argument("--rounds", type=int, default=9, help="turns of every row")
    parser.add_argument("--only", default="", help="rows whose label contains one of a,b,…")
    parser.add_argument("--threads", type=int, default=2, help="of the rows with several")
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of steps.json and logs")
    options = parser.parse_args()
    size = TINY if options.quick else FULL
    options.out.mkdir(parents=True, exist_ok=True)
    data = options.data or options.out / ("data-tiny" if options.quick else "data-full")
    dataset = generated(data, size)
    rows = our_rows(options, Path(sys.executable), data)
    wanted = options.only.split(",")
    rows = [r for r in rows if r.label in probes() or any(word in r.label for word in wanted)]
    for row in rows:
        if options.quick:
            row.count = min(row.count, 2)
        warmup = WARMUP_DENSE if row.label.endswith("dense Adam") else WARMUP
        row.worker.prepare(row.name, 2 if row.label in probes() or options.quick else warmup)
        print(f"{row.label} is warm", flush=True)
    interleave(rows, 2 if options.quick else options.rounds)
    labels = {row.label for row in rows}
    works = {
        f"{model} {sampler}": count(model, sampler, Shape(), dataset)
        for model, sampler in product(MODELS, SAMPLERS)
        if f"{model} {sampler}" in labels
    }
    document = {"machine": describe()} | summary(rows, works)
    for worker in {id(row.worker): row.worker for row in rows}.values():
        worker.close()
    print("\n" + markdown(document))
    (options.out / "steps.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
