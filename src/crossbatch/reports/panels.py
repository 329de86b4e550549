"""Charts side by side in one SVG file that stands alone: in a README, in the docs, in a paper.

    write_panels(plots, Path("figures/drift.svg"), columns=3)

The charts are those of the page. The file carries their style, follows the reader's light or dark
setting, and has one legend below all panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from crossbatch.files import write_file
from crossbatch.reports import svg
from crossbatch.reports.output import package_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crossbatch.reports.plot import Plot

GAP, HEAD, ENTRY = 24, 26, 20  # pixels between panels, for a title, for a line of the legend
LETTER = 7.2  # mean width of a legend's letter


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of a figure: its title, its SVG, and its size in pixels."""

    title: str
    chart: str
    width: int
    height: int


def write_panels(plots: Sequence[Plot], path: Path, *, columns: int) -> Path:
    """Write plots as one SVG, `columns` in a row; the file appears whole or not at all."""
    frame = svg.PANEL
    panels = [
        Panel(plot.title, svg.line_chart(plot, frame), frame.width, frame.height) for plot in plots
    ]
    legend = {line.label: line.color for plot in plots for line in plot.lines}
    return write_file(path, arrange(panels, columns=columns, legend=legend).encode("utf-8"))


def arrange(panels: Sequence[Panel], *, columns: int, legend: Mapping[str, int]) -> str:
    """Panels in rows of `columns`, all cells as large as the largest, as one SVG document.

    Args:
        panels: From left to right, then down.
        columns: In a row.
        legend: Colour numbers by label; may be empty.
    """
    columns = min(columns, len(panels))
    wide = max(panel.width for panel in panels) + GAP
    high = max(panel.height for panel in panels) + HEAD + GAP
    width = columns * wide + GAP
    top = -(-len(panels) // columns) * high + GAP // 2
    entries, below = _legend(legend, width)
    height = top + below
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" '
        f'{size} role="img" aria-label="{escape("; ".join(panel.title for panel in panels))}">',
        f"<style>{package_file('chart.css')}</style>",
        f'<rect class="back" {size}/>',
    ]
    for index, panel in enumerate(panels):
        left, above = GAP + index % columns * wide, GAP // 2 + index // columns * high
        place = f'<svg overflow="visible" x="{left}" y="{above + HEAD}" '
        place += f'width="{panel.width}" height="{panel.height}" '
        parts.append(
            f'<text class="title" x="{left}" y="{above + 16}">{escape(panel.title)}</text>'
            + panel.chart.replace("<svg ", place, 1)
        )
    parts.append(f'<g transform="translate(0 {top})">{entries}</g></svg>\n')
    return "".join(parts)


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
            f'<g class="{svg.series_class(color)}"><line class="line" x1="{x:.0f}" '
            f'x2="{x + 26:.0f}" y1="{y}" y2="{y}" stroke-dasharray="{svg.dash(color)}"/>'
            f'<text class="value" x="{x + 33:.0f}" y="{y + 4}">{escape(label)}</text></g>'
        )
        x += size
    return "".join(parts), (row + 1) * ENTRY + 8
