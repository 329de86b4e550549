"""SVG charts: lines and bars with axes, ticks and tooltips; `templates/charts.svg` has the markup.

Colours come from the page's CSS (classes `c0` … `c7`, variables for text and grid), so one chart
serves light, dark and print. The template escapes every text.

    line_chart(plot)                    # 400 × 280
    line_chart(plot, SMALL)             # a small multiple
    bar_chart(chart)                    # horizontal bars from zero
    write_panels(plots, Path("figures/drift.svg"), columns=3)

The last one writes a file that stands alone, in a README, in the docs or in a paper: it carries the
charts' style, follows the reader's light or dark setting, and has one legend below all panels.

    Axis.over([0.03, 0.127], 46, 386)(0.1)      # the pixel of 0.1
    ticks(0.03, 0.127)                          # [0.04, 0.06, 0.08, 0.1, 0.12]
    short(12_000)                               # "12k"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from crossbatch.files import write_file
from crossbatch.reports.plots import BarChart, Line, Plot

ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Axis:
    """Numbers from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, *, log: bool = False) -> Axis:
        """An axis that holds all values with a small margin."""
        low, high = log_limits(values) if log else limits(values)
        return cls(low, high, start, end, log)

    def from_zero(self) -> Axis:
        """The axis begun at zero where that costs little room."""
        if self.log or not 0 < self.low < self.high / 2:
            return self
        return Axis(0.0, self.high, self.start, self.end)

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = (
            (math.log10(x) for x in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        return self.start + (value - low) * (self.end - self.start) / ((high - low) or 1.0)

    def ticks(self, target: int) -> list[float]:
        """About `target` round numbers."""
        return (log_ticks if self.log else ticks)(self.low, self.high, target)


def limits(values: Iterable[float], *, zero: bool = False) -> tuple[float, float]:
    """The range of an axis: all values and a small margin; with zero where it is near, or `zero`.

    No values, or nothing but zeros, give (0, 1).
    """
    known = list(values)
    if not any(known):
        return 0.0, 1.0
    low, high = min(known), max(known)
    if zero or 0 < low < 0.3 * high:
        low, high = min(low, 0.0), max(high, 0.0)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if low == 0 else low - margin), (high if high == 0 else high + margin)


def ticks(low: float, high: float, target: int = 5) -> list[float]:
    """About `target` round numbers inside [low, high], in order, and at least two."""
    raw = (high - low) / max(target, 1)
    if raw <= 0 or not math.isfinite(raw):
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in ROUND_STEPS if factor * magnitude >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if last - first < 1:  # a single number gives no scale to read
        return ticks(low, high, target + 1)
    # Multiplying instead of adding keeps 0.1 + 0.1 + 0.1 from becoming 0.30000000000000004.
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def log_limits(values: Iterable[float]) -> tuple[float, float]:
    """The range of a logarithmic axis: all positive values and a small margin."""
    known = [value for value in values if value > 0]
    if not known:
        return 0.1, 1.0
    low, high = min(known), max(known)
    margin = max((high / low) ** 0.06, 1.1)
    return low / margin, high * margin


def log_ticks(low: float, high: float, target: int = 5) -> list[float]:
    """About `target` of the numbers 1, 2, 5, 10, 20 and so on inside [low, high].

    A short range has too few of them to read a scale from, and gets the ticks of a linear axis.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for factors in ((1, 2, 5), (1,)):
        candidates = (float(f"{f}e{d}") for d in range(first, last + 1) for f in factors)
        found = [value for value in candidates if low <= value <= high]
        if 2 <= len(found) <= 1.5 * target:
            return found
    if len(found) < 2:
        return ticks(low, high, target)
    return found[:: math.ceil(len(found) / target)]


def short(value: float) -> str:
    """A number on an axis: 12000 is "12k", 0.00012 is "0.00012", 0.0000012 is "1.2e-06"."""
    for size, suffix in SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def exact(value: float) -> str:
    """A number in a tooltip: whole numbers in full with separators, others to five figures."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.5g}"


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


def _draw(macro: str, *arguments: Any) -> Markup:
    """Call a macro of `charts.svg`; its line breaks between elements are left out."""
    text = getattr(_macros(), macro)(*arguments)
    return Markup(str(text).replace(">\n<", "><"))  # noqa: S704 (the template escapes all texts)


@cache
def _macros() -> Any:
    page = template_environment(short=short, pixel="{:.1f}".format)
    style = Markup(package_file("chart.css"))  # noqa: S704 (ours)
    return page.get_template("charts.svg", globals={"colors": COLORS, "style": style}).module


def line_chart(plot: Plot, frame: Frame = LARGE, place: str = "") -> Markup:
    """Draw the lines of a plot; its title and note belong to the page around it."""
    x_values = [x for line in plot.lines for x in line.curve.x]
    bounds = [bound for line in plot.lines for pair in line.intervals for bound in pair]
    y_values = [*(y for line in plot.lines for y in line.curve.y), *bounds]
    x = Axis.over(x_values, frame.left, frame.edge, log=plot.log_x).from_zero()
    y = Axis.over(y_values, frame.base, frame.top, log=plot.log_y)
    lines = [_drawn_line(line, plot, frame, x, y) for line in plot.lines]
    return _draw("line_chart", plot, frame, x, y, lines, _describe(plot), place)


def _drawn_line(line: Line, plot: Plot, frame: Frame, x: Axis, y: Axis) -> dict[str, Any]:
    points = [(x(a), y(b)) for a, b in zip(line.curve.x, line.curve.y, strict=True)]
    shown = _spread(len(points), frame.tooltips, line.best)
    marked = line.best is not None or len(points) == 1
    whiskers = zip(points, line.intervals, strict=False)
    return {
        "label": line.label,
        "color": line.color,
        "dash": dash(line.color),
        "path": "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points),
        "whiskers": [(a, y(low), y(high)) for (a, _), (low, high) in whiskers],
        "best": [points[line.best or 0]] if marked else [],
        "tooltips": [(*points[index], _tooltip(line, plot, index)) for index in shown],
    }


def bar_chart(chart: BarChart, place: str = "") -> Markup:
    """Horizontal bars from zero, each under its label, with its value at the end."""
    left, right = 4, 96
    values = [value for bar in chart.bars for value in (bar.value, *(bar.interval or ()))]
    x = Axis(*limits([*values, *chart.reach], zero=True), left, BAR_WIDTH - right)
    height = BAR_ROW * len(chart.bars) + BAR_FOOT
    texts = "; ".join(f"{bar.label}: {bar.text}" for bar in chart.bars)
    sizes = (BAR_WIDTH, height, BAR_ROW, height - BAR_FOOT + 4)
    return _draw("bar_chart", chart, x, *sizes, f"{chart.title}. {texts}", place)


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
    panels = []
    for index, (chart, (across, down)) in enumerate(zip(charts, sizes, strict=True)):
        left, above = GAP + index % columns * wide, GAP // 2 + index // columns * high
        place = Markup('overflow="visible" x="{}" y="{}" width="{}" height="{}" ').format(
            left, above + HEAD, across, down
        )
        if isinstance(chart, Plot):
            drawn = line_chart(chart, PANEL, place)
        else:
            drawn = bar_chart(chart, place)
        panels.append({"title": chart.title, "x": left, "y": above + 16, "drawn": drawn})
    lines = [line for chart in charts if isinstance(chart, Plot) for line in chart.lines]
    width = columns * wide + GAP
    top = -(-len(charts) // columns) * high + GAP // 2
    entries, below = _legend({line.label: line.color for line in lines}, width)
    whole = _draw("panels", panels, entries, width, top + below, top)
    return write_file(path, f"{whole}\n".encode())


def template_environment(**filters: Callable[..., str]) -> Environment:
    """The templates of reports, which escape all texts, with filters by name."""
    loader = PackageLoader("crossbatch.reports")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters |= filters
    return environment


def package_file(name: str) -> str:
    """Return the text of a style sheet or script beside the templates."""
    return files("crossbatch.reports").joinpath("templates", name).read_text(encoding="utf-8")


def series_class(color: int) -> str:
    """CSS class of a series' colour."""
    return f"c{color % COLORS}"


def dash(color: int) -> str:
    """Dash pattern of a series; solid for the first eight."""
    return DASHES[color // COLORS % len(DASHES)]


def _tooltip(line: Line, plot: Plot, index: int) -> str:
    here, value = exact(line.curve.x[index]), exact(line.curve.y[index])
    name = " · ".join(filter(None, (line.label, line.note)))
    best = " (best)" if index == line.best else ""
    return f"{name}\n{plot.x_label} {here}: {value}{best}"


def _spread(count: int, limit: int, keep: int | None) -> list[int]:
    """At most `limit` of `count` indices, evenly, with the first, the last and `keep`."""
    if count <= limit or not limit:
        return list(range(min(count, limit)))
    chosen = {round(i * (count - 1) / (limit - 1)) for i in range(limit)}
    return sorted(chosen | ({keep} if keep is not None else set()))


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


def _legend(labels: Mapping[str, int], width: int) -> tuple[list[dict[str, Any]], int]:
    """The entries from left to right, on as many lines as they need; and the height of it."""
    entries: list[dict[str, Any]] = []
    x, row = float(GAP), 0
    for label, color in labels.items():
        size = 33 + LETTER * len(label) + 18
        if x > GAP and x + size > width:
            x, row = float(GAP), row + 1
        place = {"x": round(x), "y": 8 + row * ENTRY}
        entries.append({"label": label, "color": color, "dash": dash(color), **place})
        x += size
    return entries, (row + 1) * ENTRY + 8 if labels else 0
