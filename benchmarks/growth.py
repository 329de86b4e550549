"""How the time of a training step grows with each size, as curves.

    python benchmarks/growth.py                # minutes; 10 GB of memory for ten million items
    python benchmarks/growth.py --quick        # a smoke run: tiny sizes, numbers mean nothing

One size at a time is varied from the paper's shape (batch 128, d = 64, history 20, 313,966 items, M
= 2432, 4 interests). Histories have no padding. CPU time of one thread, lazy Adam; the points of a
line are measured in turns. Points whose tables would take more than half of the free memory are
skipped, with a message.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from measure.floor import Speed, work
from measure.machine import PROBES, describe, free_bytes, probe
from measure.plots import draw_growth
from measure.points import Point, distinct_rows
from measure.report import header, quartiles, table_line

if TYPE_CHECKING:
    from collections.abc import Callable

WARMUP, TURN_SECONDS, TURN_STEPS = 3, 0.4, 64
SAMPLERS = ("in_batch", "cross_batch", "uniform")
MODELS = ("youtube_dnn", "gru4rec", "mind")


@dataclass(frozen=True, slots=True)
class Curve:
    """One size, where it is measured, and the model × sampler of each line.

    Attributes:
        sizes: Values of the size.
        lines: Points at the paper's shape, one a line.
        at: A line's point moved to a size.
    """

    sizes: tuple[int, ...]
    lines: tuple[Point, ...]
    at: Callable[[Point, int], Point]


def resized(field: str) -> Callable[[Point, int], Point]:
    return lambda point, size: replace(point, shape=replace(point.shape, **{field: size}))


BY_SAMPLER = tuple(Point("youtube_dnn", sampler) for sampler in SAMPLERS)
BY_MODEL = tuple(Point(model, "cross_batch") for model in MODELS)
CURVES = {
    "items": Curve(
        (10_000, 100_000, 1_000_000, 10_000_000),
        BY_SAMPLER,
        lambda point, size: replace(point, num_items=size),
    ),
    "batch": Curve((128, 512, 2048, 8192), BY_SAMPLER, resized("B")),
    "M": Curve((0, 1_000, 2_432, 10_000, 30_000, 100_000), BY_MODEL, resized("M")),
    "d": Curve((16, 32, 64, 128, 256), BY_SAMPLER, resized("d")),
    "history": Curve((20, 50, 100, 200), BY_MODEL, resized("L")),
    "interests": Curve((1, 2, 4, 8), BY_MODEL[-1:], resized("K")),
}


def measure_line(points: dict[int, Point], rounds: int, seconds: float) -> dict[str, Any]:
    """CPU milliseconds of a step at every size: median and quartiles over turns."""
    gc.collect()  # the tables of the line before
    steps, counts = {}, {}
    for size, point in points.items():
        if 2 * point.table_bytes > free_bytes():
            print(f"  {size:,} skipped: {point.table_bytes / 1e9:.1f} GB of tables do not fit")
            continue
        steps[size] = point.prepared()
        timed(steps[size], WARMUP)
        counts[size] = min(TURN_STEPS, max(2, int(seconds / timed(steps[size], 2))))
    turns: dict[int, list[float]] = {size: [] for size in steps}
    probes = {name: probe(name) for name in PROBES}
    probed: dict[str, list[float]] = {name: [] for name in PROBES}
    for _ in range(rounds):
        for size, step in steps.items():
            turns[size].append(1e3 * timed(step, counts[size]))
        for name, step in probes.items():
            probed[name].append(timed(step, 2))
    spread = {size: quartiles(values) for size, values in turns.items()}
    rates = {name: amount / median(probed[name]) for name, amount in PROBES.items()}
    speed = Speed(rates["GEMM"], rates["copy"], 1 / rates["exp"])
    return {
        "sizes": list(spread),
        "floor": [1e3 * floor(points[size], speed) for size in spread],
        **{
            name: [values[place] for values in spread.values()]
            for place, name in enumerate(("low", "median", "high"))
        },
    }


def floor(point: Point, speed: Speed) -> float:
    """Seconds that a step of this point takes at least, its histories being full."""
    shape = point.shape
    rows = distinct_rows(shape, point.sampler, point.num_items)
    return work(point.model, point.sampler, shape, shape.B * shape.L, rows).seconds(speed)["floor"]


def timed(step: Callable[[], object], count: int) -> float:
    """CPU seconds of one of `count` steps."""
    start = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - start) / count


def markdown(document: dict[str, Any]) -> str:
    """A table a curve: sizes across, one line a model × sampler."""
    tables = []
    for name, lines in document["curves"].items():
        sizes = max((line["sizes"] for line in lines.values()), key=len)
        rows = header(f"CPU ms by {name}", *(f"{size:,}" for size in sizes))
        for label, line in lines.items():
            cells = [f"{value:.2f}" for value in line["median"]]
            missing = [""] * (len(sizes) - len(cells))
            rows.append(table_line(label, *cells, *missing))
            if "floor" in line:  # records of earlier versions have none
                pairs = zip(line["median"], line["floor"], strict=True)
                times = [f"{value / least:.2f}" for value, least in pairs]
                rows.append(table_line("÷ its floor", *times, *missing))
        tables.append("\n".join(rows))
    return "\n\n".join(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", nargs="+", default=list(CURVES), choices=list(CURVES))
    parser.add_argument("--rounds", type=int, default=5, help="turns of every point")
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"machine": describe(), "quick": options.quick, "curves": {}}
    for name in options.curves:
        curve = CURVES[name]
        print(name, flush=True)
        sizes = curve.sizes[:2] if options.quick else curve.sizes
        document["curves"][name] = {
            f"{start.model} {start.sampler}": measure_line(
                {
                    size: curve.at(start.reduced() if options.quick else start, size)
                    for size in sizes
                },
                1 if options.quick else options.rounds,
                0 if options.quick else TURN_SECONDS,
            )
            for start in (curve.lines[:1] if options.quick else curve.lines)
        }
    print(markdown(document))
    (options.out / "growth.json").write_text(json.dumps(document, indent=1))
    draw_growth(document, options.out / "growth.svg")


if __name__ == "__main__":
    main()
