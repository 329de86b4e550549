"""The few pieces of HTML that every section is made of; all text is escaped here."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from crossbatch.reports import svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from crossbatch.reports.plot import Plot


def table(label: str, head: str, *bodies: str, css: str = "plain") -> str:
    """A table that scrolls in its own frame when it is wide, by keyboard too."""
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    rows = "".join(f"<tbody>{body}</tbody>" for body in bodies)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
        f'<table class="{css}">{top}{rows}</table></div>'
    )


def head_cells(texts: Iterable[str], css: str = "") -> str:
    """Column heads; a line break in a text breaks the line."""
    name = f' class="{css}"' if css else ""
    return "".join(
        f'<th scope="col"{name}>{escape(text).replace(chr(10), "<br>")}</th>' for text in texts
    )


def data_cells(texts: Iterable[str], css: str = "") -> str:
    """Plain cells of one row."""
    name = f' class="{css}"' if css else ""
    return "".join(f"<td{name}>{escape(text)}</td>" for text in texts)


def pairs(label: str, values: Mapping[str, str]) -> str:
    """A two-column table of names and values."""
    body = "".join(
        f'<tr><th scope="row" class="mono">{escape(key)}</th>{data_cells([value], "mono")}</tr>'
        for key, value in values.items()
    )
    return table(label, "", body, css="pairs")


def bullets(texts: Iterable[str]) -> str:
    """A plain list."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def box(title: str, sentences: Sequence[str]) -> str:
    """A coloured box of remarks; nothing when there are none."""
    if not sentences:
        return ""
    return f'<div class="caveats"><h3>{escape(title)}</h3>{bullets(sentences)}</div>'


def fold(title: str, note: str, inside: str, *, is_open: bool) -> str:
    """A part that opens on a click; on paper it is as the reader left it."""
    return (
        f"<details{' open' if is_open else ''}><summary>{escape(title)} "
        f'<small>{escape(note)}</small></summary><div class="inside">{inside}</div></details>'
    )


def figure(title: str, note: str, inside: str) -> str:
    """A chart with its caption."""
    small = f"<small>{escape(note)}</small>" if note else ""
    return f"<figure><figcaption>{escape(title)}{small}</figcaption>{inside}</figure>"


def plot_figure(plot: Plot) -> str:
    """A line chart with its caption and a legend that hides and shows its lines."""
    entries = {line.label: line.color for line in plot.lines}
    items = "".join(
        f'<li><button type="button" aria-pressed="true" data-series="{escape(label)}">'
        f'<svg class="{svg.series_class(color)}" viewBox="0 0 20 8" aria-hidden="true">'
        f'<line x1="0" x2="20" y1="4" y2="4" stroke-dasharray="{svg.dash(color)}"/></svg>'
        f"{escape(label)}</button></li>"
        for label, color in entries.items()
    )
    legend = f'<ul class="legend" aria-label="Lines">{items}</ul>'
    return figure(plot.title, plot.note, svg.line_chart(plot) + legend)
