"""Hand-made SVG: line charts and bars with axes, ticks and tooltips; no library, no script.

Colours come from the page's CSS (classes `c0` … `c7`, variables for text and grid), so one chart
serves light, dark and print. Every text from a run folder is escaped.

    line_chart(plot)                    # 400 × 280
    line_chart(plot, SMALL)             # a small multiple
    bar_chart(chart)                    # horizontal bars from zero
    write_panels(plots, Path("figures/drift.svg"), columns=3)

The last one writes a file that stands alone, in a README, in the docs or in a paper: it carries the
charts' style, follows the reader's light or dark setting, and has one legend below all panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from crossbatch.files import write_file
from crossbatch.reports.axis import Axis, exact, limits, short
from crossbatch.reports.plots import BarChart, Plot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crossbatch.reports.plots import Bar, Line, Mark

COLORS = 8
BAR_WIDTH, BAR_ROW, BAR_FOOT = 440, 40, 26  # pixels: a bar chart, a bar, the axis below all bars
DASHES = ("", "6 3", "2 3")  # a ninth line takes the first colour again, but dashed
GAP, HEAD, ENTRY = 24, 26, 20  # pixels between panels, for a title, for a line of the legend
LETTER = 7.2  # mean width of a legend's letter


@dataclass(frozen=True, slots=True)
class Frame:
    """Outer size of a chart and the margins around its plotting area, in pixels."""

    width: int = 400
    height: int = 280
    left: int = 46
    right: int = 14
    top: int = 26
    bottom: int = 40
    x_ticks: int = 5
    y_ticks: int = 5
    tooltips: int = 60  # at most this many points of a line answer to the pointer
    labelled: bool = True  # whether the axes are named

    @property
    def base(self) -> int:
        """Vertical position of the horizontal axis."""
        return self.height - self.bottom

    @property
    def edge(self) -> int:
        """Horizontal position of the right end of the plotting area."""
        return self.width - self.right


LARGE = Frame()
SMALL = Frame(
    width=250, height=140, left=48, top=8, bottom=24, x_ticks=3, y_ticks=3, tooltips=16,
    labelled=False,
)  # fmt: skip
PANEL = Frame(tooltips=0)  # of a file that is shown as an image


def line_chart(plot: Plot, frame: Frame = LARGE) -> str:
    """Draw the lines of a plot; its title and note belong to the page around it."""
    x_values = [x for line in plot.lines for x in line.curve.x]
    y_values = [y for line in plot.lines for y in (*line.curve.y, *_flat(line.intervals))]
    x = Axis.over(x_values, frame.left, frame.edge, log=plot.log_x).from_zero()
    y = Axis.over(y_values, frame.base, frame.top, log=plot.log_y)
    parts = [
        _svg_open(
            frame.width, frame.height, _describe(plot), "large" if frame.labelled else "small"
        ),
        _horizontal_grid(frame, y),
        _vertical_ticks(frame, x),
        *(_mark(mark, frame, x) for mark in plot.marks if x.low <= mark.x <= x.high),
        _axis_labels(frame, plot) if frame.labelled else "",
        *(_line(line, plot, frame, x, y) for line in plot.lines),
        "</svg>",
    ]
    return "".join(parts)


def bar_chart(chart: BarChart) -> str:
    """Horizontal bars from zero, each under its label, with its value at the end."""
    left, right, row, foot, width = 4, 96, BAR_ROW, BAR_FOOT, BAR_WIDTH
    values = [value for bar in chart.bars for value in (bar.value, *(bar.interval or ()))]
    x = Axis(*limits([*values, *chart.reach], zero=True), left, width - right)
    height = row * len(chart.bars) + foot
    zero = x(0.0)
    texts = "; ".join(f"{bar.label}: {bar.text}" for bar in chart.bars)
    parts = [_svg_open(width, height, f"{chart.title}. {texts}", "bars")]
    base = height - foot + 4
    for tick in x.ticks(5):
        at = x(tick)
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{base}"/>'
            f'<text class="tick" text-anchor="middle" x="{at:.1f}" y="{base + 15}">'
            f"{short(tick)}</text>"
        )
    parts.append(f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="0" y2="{base}"/>')
    parts += [_bar(bar, index * row, x, width - 4) for index, bar in enumerate(chart.bars)]
    return "".join([*parts, "</svg>"])


def write_panels(charts: Sequence[Plot | BarChart], path: Path, *, columns: int) -> Path:
    """Write charts as one SVG, `columns` in a row, all cells as large as the largest."""
    sizes = [
        (PANEL.width, PANEL.height)
        if isinstance(chart, Plot)
        else (BAR_WIDTH, BAR_ROW * len(chart.bars) + BAR_FOOT)
        for chart in charts
    ]
    columns = min(columns, len(charts))
    wide = max(width for width, _ in sizes) + GAP
    high = max(height for _, height in sizes) + HEAD + GAP
    lines = [line for chart in charts if isinstance(chart, Plot) for line in chart.lines]
    width = columns * wide + GAP
    top = -(-len(charts) // columns) * high + GAP // 2
    entries, below = _legend({line.label: line.color for line in lines}, width)
    size = f'width="{width}" height="{top + below}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {top + below}"'
        f' {size} role="img" aria-label="{escape("; ".join(chart.title for chart in charts))}">',
        f"<style>{package_file('chart.css')}</style>",
        f'<rect class="back" {size}/>',
    ]
    for index, (chart, (across, down)) in enumerate(zip(charts, sizes, strict=True)):
        left, above = GAP + index % columns * wide, GAP // 2 + index // columns * high
        place = f'<svg overflow="visible" x="{left}" y="{above + HEAD}" '
        place += f'width="{across}" height="{down}" '
        drawn = line_chart(chart, PANEL) if isinstance(chart, Plot) else bar_chart(chart)
        parts.append(
            f'<text class="title" x="{left}" y="{above + 16}">{escape(chart.title)}</text>'
            + drawn.replace("<svg ", place, 1)
        )
    parts.append(f'<g transform="translate(0 {top})">{entries}</g></svg>\n')
    return write_file(path, "".join(parts).encode("utf-8"))


def package_file(name: str) -> str:
    """Return the text of a style sheet or script beside the templates."""
    return files("crossbatch.reports").joinpath("templates", name).read_text(encoding="utf-8")


def series_class(color: int) -> str:
    """CSS class of a series' colour."""
    return f"c{color % COLORS}"


def dash(color: int) -> str:
    """Dash pattern of a series; solid for the first eight."""
    return DASHES[color // COLORS % len(DASHES)]


def _svg_open(width: int, height: int, description: str, kind: str) -> str:
    return (
        f'<svg class="chart {kind}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(description)}">'
    )


def _horizontal_grid(frame: Frame, y: Axis) -> str:
    parts = []
    for tick in y.ticks(frame.y_ticks):
        at = y(tick)
        parts.append(
            f'<line class="grid" x1="{frame.left}" x2="{frame.edge}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" text-anchor="end" x="{frame.left - 6}" y="{at + 4:.1f}">'
            f"{short(tick)}</text>"
        )
    return "".join(parts)


def _vertical_ticks(frame: Frame, x: Axis) -> str:
    base = frame.base
    parts = [f'<line class="axis" x1="{frame.left}" x2="{frame.edge}" y1="{base}" y2="{base}"/>']
    for tick in x.ticks(frame.x_ticks):
        at = x(tick)
        parts.append(
            f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{base}" y2="{base + 4}"/>'
            f'<text class="tick" text-anchor="middle" x="{at:.1f}" y="{base + 17}">'
            f"{short(tick)}</text>"
        )
    return "".join(parts)


def _axis_labels(frame: Frame, plot: Plot) -> str:
    return (
        f'<text class="label" x="4" y="14">{escape(plot.y_label)}</text>'
        f'<text class="label" text-anchor="end" x="{frame.edge}" y="{frame.height - 6}">'
        f"{escape(plot.x_label)}</text>"
    )


def _mark(mark: Mark, frame: Frame, x: Axis) -> str:
    at = x(mark.x)
    side, anchor = (4, "start") if at < frame.width / 2 else (-4, "end")
    return (
        f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{frame.top}" y2="{frame.base}"/>'
        f'<text class="tick" text-anchor="{anchor}" x="{at + side:.1f}" y="{frame.top + 10}">'
        f"{escape(mark.label)}</text>"
    )


def _line(line: Line, plot: Plot, frame: Frame, x: Axis, y: Axis) -> str:
    points = [(x(a), y(b)) for a, b in zip(line.curve.x, line.curve.y, strict=True)]
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
    dashed = f' stroke-dasharray="{dash(line.color)}"' if dash(line.color) else ""
    parts = [f'<g class="series {series_class(line.color)}" data-series="{escape(line.label)}">']
    parts.append(f'<path class="line" d="{path}"{dashed}/>')
    for (a, _), (low, high) in zip(points, line.intervals, strict=False):
        parts.append(f'<path class="spread" d="M{a:.1f} {y(low):.1f}V{y(high):.1f}"/>')
    if line.best is not None or len(points) == 1:
        a, b = points[line.best or 0]
        parts.append(f'<circle class="best" cx="{a:.1f}" cy="{b:.1f}" r="3.5"/>')
    for index in _spread(len(points), frame.tooltips, line.best):
        a, b = points[index]
        text = _tooltip(line, plot, index)
        parts.append(
            f'<circle class="hit" cx="{a:.1f}" cy="{b:.1f}" r="6"><title>{escape(text)}</title>'
            "</circle>"
        )
    return "".join([*parts, "</g>"])


def _tooltip(line: Line, plot: Plot, index: int) -> str:
    here, value = exact(line.curve.x[index]), exact(line.curve.y[index])
    name = " · ".join(filter(None, (line.label, line.note)))
    best = " (best)" if index == line.best else ""
    return f"{name}\n{plot.x_label} {here}: {value}{best}"


def _flat(intervals: Sequence[tuple[float, float]]) -> list[float]:
    return [bound for interval in intervals for bound in interval]


def _spread(count: int, limit: int, keep: int | None) -> list[int]:
    """At most `limit` of `count` indices, evenly, with the first, the last and `keep`."""
    if count <= limit or not limit:
        return list(range(min(count, limit)))
    chosen = {round(i * (count - 1) / (limit - 1)) for i in range(limit)}
    return sorted(chosen | ({keep} if keep is not None else set()))


def _bar(bar: Bar, top: int, x: Axis, end: int) -> str:
    color = "neutral" if bar.color is None else series_class(bar.color)
    start, stop = sorted((x(0.0), x(bar.value)))
    middle = top + 27
    parts = [
        f'<g class="series {color}" data-series="{escape(bar.label)}">',
        f"<title>{escape(bar.label)}: {escape(bar.text)}</title>",
        f'<text class="label" x="4" y="{top + 14}">{escape(bar.label)}</text>',
        f'<rect class="bar" x="{start:.1f}" y="{top + 20}" width="{max(stop - start, 1):.1f}" '
        'height="14" rx="2"/>',
    ]
    if bar.interval is not None:
        low, high = (x(value) for value in bar.interval)
        parts.append(
            f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8'
            f'M{high:.1f} {middle - 4}v8"/>'
        )
    parts.append(
        f'<text class="value" text-anchor="end" x="{end}" y="{middle + 5}">'
        f"{escape(bar.text)}</text></g>"
    )
    return "".join(parts)


def _describe(plot: Plot) -> str:
    """What a screen reader says: the title, and where each line ends up."""
    ends = []
    for line in plot.lines:
        index = line.best if line.best is not None else len(line.curve) - 1
        word = "best" if line.best is not None else "last"
        name = " ".join(filter(None, (line.label, line.note)))
        here, value = exact(line.curve.x[index]), exact(line.curve.y[index])
        ends.append(f"{name}: {word} {value} at {plot.x_label} {here}")
    return f"{plot.title}. " + "; ".join(ends)


def _legend(entries: Mapping[str, int], width: int) -> tuple[str, int]:
    """The entries from left to right, on as many lines as they need; and the height of it."""
    if not entries:
        return "", 0
    parts = []
    x, row = float(GAP), 0
    for label, color in entries.items():
        size = 33 + LETTER * len(label) + 18
        if x > GAP and x + size > width:
            x, row = float(GAP), row + 1
        y = 8 + row * ENTRY
        parts.append(
            f'<g class="{series_class(color)}"><line class="line" x1="{x:.0f}" '
            f'x2="{x + 26:.0f}" y1="{y}" y2="{y}" stroke-dasharray="{dash(color)}"/>'
            f'<text class="value" x="{x + 33:.0f}" y="{y + 4}">{escape(label)}</text></g>'
        )
        x += size
    return "".join(parts), (row + 1) * ENTRY + 8
