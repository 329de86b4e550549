"""Curves and gains as PNG and PDF for a paper; needs matplotlib, the extra `report`.

    write_figures(runs, Path("figures"))    # recall.png, recall.pdf, ndcg.png, …, gain.pdf

The lines are those of the HTML page (`plots.py`): one panel per model, one colour per sampler.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from crossbatch.errors import ConfigError
from crossbatch.files import write_file
from crossbatch.reports.axis import log_ticks, short
from crossbatch.reports.comparison import Comparison, compare
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.plots import colors_of, training_plots
from crossbatch.reports.svg import COLORS, DASHES
from crossbatch.reports.variants import group_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

    from crossbatch.reports.plots import Plot
    from crossbatch.reports.runs import Run

FORMATS = ("png", "pdf")
PANEL = (3.6, 2.8)  # inches: two panels fill a text column
# The light palette of page.css.
PALETTE = (
    "#2f6fb7", "#c2570c", "#7a4fb5", "#0b8a5f", "#b8336a", "#8a6d00", "#0a8296", "#6b5b4b",
)  # fmt: skip
STYLES = ("-", (0, (6, 3)), (0, (2, 3)))  # the same dashes as svg.DASHES


def write_figures(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draw one figure per kind of curve, and one of the gains; each as PNG and PDF.

    Args:
        runs: what to draw.
        folder: where the files go; made if missing.

    Returns:
        The files written. Runs without a journal and without gains give none.
    """
    variants, comparison = group_runs(runs), compare(runs)
    by_name: dict[str, list[Plot]] = {}
    for plot in training_plots(variants, comparison.headline):
        by_name.setdefault(plot.name, []).append(plot)
    written = []
    for name, plots in by_name.items():
        written += draw_panels(plots, folder, name, columns=len(plots))
    return written + draw_gains(comparison, colors_of(variants), folder)


def draw_gains(comparison: Comparison, colors: Mapping[str, int], folder: Path) -> list[Path]:
    """Draw the gains over in-batch in the headline metric; nothing where there are none."""
    figure = _figure_class()(layout="constrained")
    return _save(figure, folder, "gain") if _draw_gains(figure, comparison, colors) else []


def draw_panels(plots: Sequence[Plot], folder: Path, name: str, *, columns: int) -> list[Path]:
    """Draw plots side by side, `columns` in a row, with one legend; as PNG and PDF."""
    figure_class = _figure_class()
    rows = -(-len(plots) // columns)
    size = (PANEL[0] * columns, PANEL[1] * rows)
    figure = figure_class(figsize=size, layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, plot in zip(panels, plots, strict=False):
        _draw_lines(axes, plot)
    for axes in panels[len(plots) :]:
        axes.set_visible(False)
    _legend(figure, panels)
    return _save(figure, folder, name)


def _figure_class() -> type[Figure]:
    """The class itself, not pyplot: no window, no global state, no backend to choose."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "figures need matplotlib, which is not installed; "
            "run `pip install 'crossbatch[report]'` or leave out --figures"
        ) from error
    return Figure


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
    _tidy(axes)


def _round_ticks(axis: XAxis | YAxis, limits: tuple[float, float]) -> None:
    """The numbers of the page's logarithmic axes, not powers in scientific notation."""
    places = log_ticks(*limits)
    axis.set_ticks(places, [short(place) for place in places])
    axis.set_ticks([], minor=True)


def _draw_gains(figure: Figure, comparison: Comparison, colors: Mapping[str, int]) -> bool:
    """Horizontal bars with their intervals; False where no run has a reference."""
    metric = comparison.headline
    rows = [row for row in comparison.rows if metric in row.gains]
    if not rows:
        return False
    figure.set_size_inches(5.2, 0.8 + 0.3 * len(rows))
    axes = figure.subplots()
    for place, row in enumerate(reversed(rows)):
        gain = row.gains[metric]
        axes.barh(
            place, 100 * gain.relative, color=PALETTE[colors[row.sampler] % COLORS], height=0.6
        )
        if gain.interval:
            axes.plot([100 * bound for bound in gain.interval], [place] * 2, "k|-", lw=1, ms=5)
    axes.set_yticks(range(len(rows)), [_plain(row.label) for row in reversed(rows)])
    axes.axvline(0, color="black", lw=0.8)
    axes.set_xlabel(f"gain over in-batch in test {metric_name(metric)}, %")
    _tidy(axes)
    return True


def _plain(text: str) -> str:
    """Matplotlib reads what stands between dollars as mathematics; names are not."""
    return text.replace("$", r"\$")


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#e4e4e4", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(8.5)


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
