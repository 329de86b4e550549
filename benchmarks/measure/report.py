"""From the turns of an interleaved run to tables: medians, quartiles, floors, ratios, targets.

Targets are ratios between rows of one run; they are shown, never asserted.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from measure.floor import Speed
from measure.machine import PROBES
from measure.shape import MODELS, SAMPLERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from measure.floor import Work
    from measure.workers import Row

Document = dict[str, Any]

FLOOR_TARGETS = {
    (model, sampler): 3.0 if model != "youtube_dnn" else (2.5 if sampler == "in_batch" else 1.7)
    for model, sampler in product(MODELS, SAMPLERS)
}


@dataclass(frozen=True, slots=True)
class Target:
    """The ratio or difference of two rows should be at least, or at most, a value.

    Attributes:
        above: Label of the row above the line.
        below: Label of the row below it.
        at_least: The value to reach, or None.
        at_most: The value not to exceed, or None.
        clock: `"cpu"` or `"wall"`.
        unit: `"×"` for the ratio of the two, `"ms"` for their difference.
        otherwise: What is said where the value is not reached.
    """

    above: str
    below: str
    at_least: float | None = None
    at_most: float | None = None
    clock: str = "cpu"
    unit: str = "×"
    otherwise: str = "missed"

    def met(self, value: float) -> bool:
        """Whether a measured value is good enough."""
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most


TARGETS = (
    Target("TFRS, Adagrad", "youtube_dnn in_batch", at_least=4),
    Target("TFRS, Adagrad", "youtube_dnn in_batch, Adagrad"),
    Target("plain PyTorch, SparseAdam", "youtube_dnn in_batch", at_least=4),
    Target("TFRS, Adam", "youtube_dnn in_batch"),
    Target("plain PyTorch, Adam", "youtube_dnn in_batch"),
    Target("torch-rechub DSSM, in-batch", "youtube_dnn in_batch", at_least=150),
    Target("pytorch-metric-learning CrossBatchMemory", "youtube_dnn cross_batch", at_least=300),
    Target("ComiRec's step, uniform", "youtube_dnn uniform"),
    Target("plain PyTorch, Adam, uniform", "youtube_dnn uniform", at_least=35),
    Target("RecBole GRU4Rec, BPR", "gru4rec in_batch", at_least=50),
    Target("RecBole GRU4Rec, all items", "gru4rec uniform"),
    Target("torch-rechub MIND, 127 negatives", "mind in_batch", at_least=150),
    Target("torch-rechub MIND, 1280 negatives", "mind uniform"),
    Target("youtube_dnn cross_batch", "youtube_dnn uniform", at_most=0.55),
    Target("youtube_dnn cross_batch", "youtube_dnn in_batch", at_most=1.8, unit="ms"),
    *(
        Target(f"{model} {sampler}, dense Adam", f"{model} {sampler}", at_most=1.5)
        for model, sampler in product(MODELS, SAMPLERS)
    ),
    *(
        Target(
            f"{model} {sampler}",
            f"{model} {sampler}, 2 threads",
            at_least=1.4,
            clock="wall",
            otherwise="training takes one",
        )
        for model, sampler in product(MODELS, SAMPLERS)
    ),
)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile; one value is all three."""
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def speed(rows: Mapping[str, Row]) -> Speed:
    """The machine's speed from the probes' turns."""
    names = ("GEMM", "copy", "exp")
    rates = {name: PROBES[name] / statistics.median(rows[name].cpu) for name in names}
    return Speed(rates["GEMM"], rates["copy"], 1 / rates["exp"])


def summary(rows: Sequence[Row], works: Mapping[str, Work]) -> Document:
    """All that was measured, ready for JSON."""
    by_label = {row.label: row for row in rows}
    measured = speed(by_label)
    return {
        "speed": {
            "GFLOP/s": measured.flop_per_second / 1e9,
            "GB/s": measured.bytes_per_second / 1e9,
            "ns per exp": measured.seconds_per_exp * 1e9,
        },
        "rows": {
            row.label: {
                "cpu": row.cpu,
                "wall": row.wall,
                "steps": row.count,
                "versions": row.worker.versions,
            }
            for row in rows
        },
        "floors": {
            label: {
                "flop": work.flop,
                "rows": work.rows,
                "bytes": work.bytes,
                "exponentials": work.exponentials,
                "seconds": work.seconds(measured),
            }
            for label, work in works.items()
        },
        "targets": [
            _target(target, by_label)
            for target in TARGETS
            if target.above in by_label and target.below in by_label
        ],
    }


def _target(target: Target, rows: Mapping[str, Row]) -> Document:
    """A target and the quartiles of the turns' ratios or differences."""
    above = getattr(rows[target.above], target.clock)
    below = getattr(rows[target.below], target.clock)
    pairs = list(zip(above, below, strict=True))
    values = [1e3 * (a - b) if target.unit == "ms" else a / b for a, b in pairs]
    low, middle, high = quartiles(values)
    aim = target.at_least if target.at_least is not None else target.at_most
    return {
        "above": target.above,
        "below": target.below,
        "unit": target.unit,
        "clock": target.clock,
        "value": middle,
        "quartiles": [low, high],
        "aim": None if aim is None else ("≥ " if target.at_least else "≤ ") + f"{aim:g}",
        "met": None if aim is None else target.met(middle),
        "otherwise": target.otherwise,
    }


def markdown(document: Document) -> str:
    """Three tables: the floor's parts, the steps, the ratios."""
    parts = (speed_line, floor_table, step_table, ratio_table)
    return "\n\n".join(part(document) for part in parts)


def speed_line(document: Document) -> str:
    """Where and how fast: machine, versions of all libraries, speeds of the probes."""
    machine = ", ".join(f"{key} {value}" for key, value in document["machine"].items())
    found: dict[str, dict[str, None]] = {}
    for row in document["rows"].values():
        for package, version in row["versions"].items():
            found.setdefault(package, {})[version] = None
    versions = ", ".join(f"{package} {' and '.join(all_)}" for package, all_ in found.items())
    measured = ", ".join(f"{value:.2f} {key}" for key, value in document["speed"].items())
    return f"Machine: {machine}.\n\nVersions: {versions}.\n\nMeasured in the same run: {measured}."


def floor_table(document: Document) -> str:
    """What a step must do at least, and how long that takes here."""
    lines = header("floor of", "MFLOP", "rows", "MB", "10³ exp", "products", "rows", "exp", "ms")
    for label, floor in document["floors"].items():
        seconds = floor["seconds"]
        cells = [
            f"{sum(floor['flop'].values()) / 1e6:.1f}",
            f"{floor['rows']:,.0f}",
            f"{floor['bytes'] / 1e6:.2f}",
            f"{floor['exponentials'] / 1e3:.0f}",
            *(f"{1e3 * value:.2f}" for value in seconds.values()),
        ]
        lines.append(table_line(label, *cells))
    return "\n".join(lines)


def step_table(document: Document) -> str:
    """CPU time of every row; ours over the floor."""
    lines = header("step", "CPU ms", "quartiles", "floor ms", "÷ floor", "aim", "")
    for label, row in document["rows"].items():
        if label in PROBES:
            continue
        low, middle, high = (1e3 * value for value in quartiles(row["cpu"]))
        cells = [f"{middle:.2f}", f"{low:.2f}-{high:.2f}"]
        if floor := document["floors"].get(label):
            least = 1e3 * floor["seconds"]["floor"]
            model, sampler = label.split()
            aim = FLOOR_TARGETS[model, sampler]
            verdict = _verdict(middle / least <= aim)
            cells += [f"{least:.2f}", f"{middle / least:.2f}", f"≤ {aim}", verdict]
        else:
            cells += [""] * 4
        lines.append(table_line(label, *cells))
    return "\n".join(lines)


def ratio_table(document: Document) -> str:
    """Every target with what was measured."""
    lines = header("ratio", "measured", "quartiles", "aim", "")
    for target in document["targets"]:
        low, high = target["quartiles"]
        sign = "−" if target["unit"] == "ms" else "÷"
        clock = " (wall)" if target["clock"] == "wall" else ""
        lines.append(
            table_line(
                f"{target['above']} {sign} {target['below']}{clock}",
                f"{target['value']:.3g} {target['unit']}",
                f"{low:.3g}-{high:.3g}",
                target["aim"] or "",
                _verdict(target["met"], target["otherwise"]),
            )
        )
    return "\n".join(lines)


def _verdict(met: bool | None, otherwise: str = "missed") -> str:
    return "" if met is None else ("ok" if met else otherwise)


def header(*names: str) -> list[str]:
    """The two lines that open a Markdown table."""
    return [table_line(*names), "|---" * len(names) + "|"]


def table_line(*cells: str) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"
