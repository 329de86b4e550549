"""Curves and gains as PNG and PDF for a paper; needs matplotlib, the extra `report`.

    write_figures(runs, Path("figures"))    # recall.png, recall.pdf, ndcg.png, …, gain.pdf

The lines are those of the HTML page (`plots.py`): one panel per model, one colour per sampler.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.errors import needs_extra
from crossbatch.files import write_file
from crossbatch.reports.comparison import compare
from crossbatch.reports.plots import BarChart, Plot, colors_of, gain_charts, training_plots
from crossbatch.reports.svg import COLORS, DASHES, log_ticks, short
from crossbatch.reports.variants import group_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

    from crossbatch.reports.runs import Run

FORMATS = ("png", "pdf")
PANEL = (3.6, 2.8)  # inches: two panels fill a text column
# The light palette of page.css.
PALETTE = (
    "#2f6fb7", "#c2570c", "#7a4fb5", "#0b8a5f", "#b8336a", "#8a6d00", "#0a8296", "#6b5b4b",
)  # fmt: skip
STYLES = ("-", (0, (6, 3)), (0, (2, 3)))  # the same dashes as svg.DASHES


def write_figures(runs: Sequence[Run], folder: Path | str) -> list[Path]:
    """Draw one figure per kind of curve, and one of the gains; each as PNG and PDF.

    Returns the files written: none for runs without a journal and without gains.
    """
    variants, comparison = group_runs(runs), compare(runs)
    figures: dict[str, list[Plot | BarChart]] = {}
    for plot in training_plots(variants, comparison.headline):
        figures.setdefault(plot.name, []).append(plot)
    figures["gain"] = [*gain_charts(comparison, colors_of(variants))]
    return [
        path
        for name, charts in figures.items()
        if charts
        for path in draw_panels(charts, Path(folder), name, columns=len(charts))
    ]


def draw_panels(
    charts: Sequence[Plot | BarChart], folder: Path, name: str, *, columns: int
) -> list[Path]:
    """Draw charts side by side, `columns` in a row, with one legend; as PNG and PDF."""
    with needs_extra("report", "--figures"):
        # The class itself, not pyplot: no window, no global state, no backend to choose.
        from matplotlib.figure import Figure
    columns = min(columns, len(charts))
    rows = -(-len(charts) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, chart in zip(panels, charts, strict=False):
        _draw_lines(axes, chart) if isinstance(chart, Plot) else _draw_bars(axes, chart)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="#e4e4e4", lw=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_fontsize(8.5)
    for axes in panels[len(charts) :]:
        axes.set_visible(False)
    _legend(figure, panels)
    return _save(figure, folder, name)


def _draw_lines(axes: Axes, plot: Plot) -> None:
    named: set[str] = set()
    for line in plot.lines:
        color = PALETTE[line.color % COLORS]
        style: Any = STYLES[line.color // COLORS % len(DASHES)]
        label = "_nolegend_" if line.label in named else _plain(line.label)
        named.add(line.label)
        axes.plot(line.curve.x, line.curve.y, color=color, linestyle=style, lw=1.2, label=label)
        for x, interval in zip(line.curve.x, line.intervals, strict=False):
            axes.plot([x, x], interval, color=color, lw=0.9, alpha=0.7)
        if line.best is not None:
            axes.plot(line.curve.x[line.best], line.curve.y[line.best], "o", color=color, ms=3.5)
    for mark in plot.marks:
        axes.axvline(mark.x, color="#565e69", lw=0.9, linestyle=(0, (3, 3)))
        axes.annotate(
            f" {_plain(mark.label)}",
            (mark.x, 1.0),
            xycoords=("data", "axes fraction"),
            va="top",
            fontsize=7.5,
            color="#565e69",
        )
    if plot.log_x:
        axes.set_xscale("log")
        _round_ticks(axes.xaxis, axes.get_xlim())
    if plot.log_y:
        axes.set_yscale("log")
        _round_ticks(axes.yaxis, axes.get_ylim())
    axes.set_title(_plain(plot.title), fontsize=9)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(_plain(plot.y_label))


def _round_ticks(axis: XAxis | YAxis, limits: tuple[float, float]) -> None:
    """The numbers of the page's logarithmic axes, not powers in scientific notation."""
    places = log_ticks(*limits)
    axis.set_ticks(places, [short(place) for place in places])
    axis.set_ticks([], minor=True)


def _draw_bars(axes: Axes, chart: BarChart) -> None:
    """Horizontal bars with their intervals, from top to bottom."""
    for place, bar in enumerate(chart.bars):
        axes.barh(place, bar.value, color=PALETTE[(bar.color or 0) % COLORS], height=0.6)
        if bar.interval:
            axes.plot(bar.interval, [place] * 2, "k|-", lw=1, ms=5)
    axes.set_yticks(range(len(chart.bars)), [_plain(bar.label) for bar in chart.bars])
    axes.invert_yaxis()
    axes.set_title(_plain(chart.title), fontsize=9, loc="right")  # the labels need the left
    axes.axvline(0, color="black", lw=0.8)


def _plain(text: str) -> str:
    """Matplotlib reads what stands between dollars as mathematics; names are not."""
    return text.replace("$", r"\$")


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend below all panels: each label once, whichever panel has it."""
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    entry = 0.6 + 0.085 * max((len(label) for label in handles), default=0)  # inches
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=max(1, min(len(handles), int(figure.get_figwidth() / entry))),
        fontsize=8,
        frameon=False,
    )


def _save(figure: Figure, folder: Path, name: str) -> list[Path]:
    paths = []
    for kind in FORMATS:
        buffer = io.BytesIO()
        # No creation date: the same runs give the same bytes.
        metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
        paths.append(write_file(folder / f"{name}.{kind}", buffer.getvalue()))
    return paths
