"""Time of a training step compared with other libraries and a lower bound, in one interleaved run.

    python benchmarks/steps.py                            # everything: about ten minutes
    python benchmarks/steps.py --no-peers --only "youtube_dnn [a-z_]*$" --rounds 3
    python benchmarks/steps.py --quick                    # a smoke run: numbers mean nothing

Batch 128, d = 64, history 20, 313,966 items, id and category through MLPs; CPU time of a step on
one thread, including loading its batch; median and quartiles over turns. Other libraries (peers)
run in their own environments, which are created at first use (`--venvs`).
"""

from __future__ import annotations

import argparse
import json
import re
from itertools import product
from pathlib import Path

from measure.floor import Shape
from measure.machine import PROBES, describe
from measure.plots import draw_steps
from measure.report import markdown, summary
from measure.rows import Run
from measure.shape import FULL, MODELS, SAMPLERS, TINY, count, generated
from measure.workers import ROOT, Row, interleave

# Before timing: until tables and moments are in memory, banks full and Adam's corrections settled.
WARMUP_STEPS, WARMUP_SECONDS = 600, 20.0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="dataset folder; generated where absent")
    parser.add_argument("--rounds", type=int, default=9, help="turns of every row")
    parser.add_argument("--only", default="", help="rows whose label this expression finds")
    parser.add_argument("--threads", type=int, default=2, help="of the rows with several; or 1")
    parser.add_argument("--no-peers", action="store_true", help="only our rows and the floor")
    parser.add_argument("--venvs", type=Path, default=ROOT, help="folder of the environments")
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    return parser.parse_args()


def warm_up(rows: list[Row], *, quick: bool) -> None:
    """Build every row, take its first steps and set the length of its turns."""
    for row in rows:
        steps = 2 if quick or row.label in PROBES else WARMUP_STEPS
        row.worker.prepare(row.name, steps, WARMUP_SECONDS)
        row.choose_count(2 if quick else None)
        print(f"{row.label} is warm", flush=True)


def main() -> None:
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    data = options.data or options.out / ("data-tiny" if options.quick else "data-full")
    dataset = generated(data, TINY if options.quick else FULL)
    run = Run(dataset, options.out, options.venvs, re.compile(options.only))
    rows = run.our_rows(1 if options.quick else options.threads)
    if not (options.no_peers or options.quick):
        rows += run.peer_rows()
    warm_up(rows, quick=options.quick)
    interleave(rows, 2 if options.quick else options.rounds)
    labels = {row.label for row in rows}
    works = {
        label: count(model, sampler, Shape(), dataset)
        for model, sampler in product(MODELS, SAMPLERS)
        if (label := f"{model} {sampler}") in labels
    }
    document = {"machine": describe(), "quick": options.quick} | summary(rows, works)
    for worker in {row.worker for row in rows}:
        worker.close()
    print("\n" + markdown(document))
    (options.out / "steps.json").write_text(json.dumps(document, indent=1))
    draw_steps(document, options.out / "steps.svg")


if __name__ == "__main__":
    main()
