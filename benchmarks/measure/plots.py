"""Plots of what was measured, as SVG; needs matplotlib, the extra `report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from measure.machine import PROBES
from measure.report import quartiles

if TYPE_CHECKING:
    from pathlib import Path

TITLES = {
    "items": "items in the catalogue",
    "batch": "rows of a batch",
    "M": "rows of the bank",
    "d": "width of vectors",
    "history": "items of a history",
    "interests": "interests of MIND",
}
OURS, FLOOR, PEER = "#2f6fb7", "#0b8a5f", "#8a6d00"


def draw_steps(document: dict[str, Any], path: Path) -> None:
    """One bar a row on a logarithmic axis, the floor as a mark on ours."""
    rows = {
        label: [1e3 * value for value in quartiles(row["cpu"])]
        for label, row in document["rows"].items()
        if label not in PROBES
    }
    figure = Figure(figsize=(8, 0.8 + 0.24 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (label, (low, middle, high)) in enumerate(rows.items()):
        ours = "crossbatch" in document["rows"][label]["versions"]
        axes.barh(place, middle, color=OURS if ours else PEER)
        axes.plot([low, high], [place, place], color="black", linewidth=1)
        if floor := document["floors"].get(label):
            axes.plot(1e3 * floor["seconds"]["floor"], place, "|", color=FLOOR, markersize=11)
    axes.set(
        xscale="log",
        yticks=range(len(rows)),
        yticklabels=list(rows),
        xlabel="CPU ms per step of 128 (one thread); green: the floor; lines: quartiles",
    )
    axes.invert_yaxis()
    figure.savefig(path, metadata={"Date": None})


def draw_growth(document: dict[str, Any], path: Path) -> None:
    """A panel a size, both axes logarithmic; a bank of no rows stands at the left edge."""
    curves = document["curves"]
    figure = Figure(figsize=(10, 3.2 * -(-len(curves) // 3)), layout="constrained")
    panels = figure.subplots(-(-len(curves) // 3), 3, squeeze=False).flatten().tolist()
    for axes, (name, lines) in zip(panels, curves.items(), strict=False):
        for label, line in lines.items():
            sizes = line["sizes"]
            axes.plot(sizes, line["median"], marker="o", markersize=3, label=label)
            axes.fill_between(sizes, line["low"], line["high"], alpha=0.2)
        axes.set(xscale="symlog" if name == "M" else "log", yscale="log", title=TITLES[name])
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30, fontsize=7)
        axes.minorticks_off()
        axes.set_ylabel("CPU ms per step")
        axes.legend(fontsize=6)
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    figure.savefig(path, metadata={"Date": None})
