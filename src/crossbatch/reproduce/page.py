"""What an experiment writes: a Markdown page, the same numbers as CSV and JSON, and figures.

write_page(GridFolder(Path("paper")), Page("table1", "Table 1", [table, note], rows))
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from crossbatch.files import sealed, write_document, write_file
from crossbatch.reports.markdown import literal
from crossbatch.reports.svg import write_panels

if TYPE_CHECKING:
    from crossbatch.reports.plots import BarChart, Plot
    from crossbatch.reports.runs import Run
    from crossbatch.reproduce.folder import GridFolder


@dataclass(frozen=True, slots=True)
class Figure:
    """Plots that stand together in one file, `columns` in a row."""

    name: str
    plots: Sequence[Plot | BarChart]
    columns: int
    caption: str
    captioned: bool = True  # whether the caption also stands below the figure


@dataclass(frozen=True, slots=True)
class Page:
    """One experiment, written up.

    Attributes:
        name: Of the files.
        title: Of the page.
        parts: Markdown below the title.
        rows: The numbers, one mapping a row, for CSV and JSON.
        figures: Drawn below the tables, where they have plots.
    """

    name: str
    title: str
    parts: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    figures: Sequence[Figure] = ()


def write_page(folder: GridFolder, page: Page) -> list[Path]:
    """Write all files of a page into the grid's folder."""
    out = folder.path
    figures = [figure for figure in page.figures if figure.plots]
    drawn = [path for figure in figures for path in _draw(figure, out / "figures")]
    images = []
    for figure in figures:
        caption = literal(figure.caption)
        images.append(f"![{caption}](figures/{figure.name}.svg)")
        images += [f"*{caption}*"] if figure.captioned else []
    text = "\n\n".join([f"# {page.title}", *_heading(folder), *page.parts, *images]) + "\n"
    document = {"experiment": page.name} | folder.facts | {"rows": page.rows}
    document = sealed(json.loads(json.dumps(document)))  # keys as they will be read
    return [
        write_file(out / f"{page.name}.md", text.encode()),
        write_file(out / f"{page.name}.csv", _csv(page.rows).encode()),
        write_document(out / f"{page.name}.json", document),
        *drawn,
    ]


def run_link(run: Run, folder: GridFolder, text: str) -> str:
    """A Markdown link from a page of the grid to a run's folder; plain text for a record."""
    if not run.path.is_relative_to(folder.path):
        return literal(text)
    relative = Path(os.path.relpath(run.path, folder.path)).as_posix()
    return f"[{literal(text)}]({quote(relative)})"


def run_links(runs: Sequence[Run], folder: GridFolder) -> str:
    """The seeds of some runs, each linked to its folder."""
    ordered = sorted(runs, key=lambda run: run.seed or 0)
    return " ".join(run_link(run, folder, str(run.seed)) for run in ordered)


def _heading(folder: GridFolder) -> list[str]:
    """Which data, and whether the runs were cut short."""
    facts, parts = folder.facts, []
    data = facts.get("dataset")
    if data:
        parts.append(
            f"Data: {literal(data['name'])}, {data['users']:,} users, {data['items']:,} items, "
            f"{data['interactions']:,} interactions."
        )
    if facts.get("budget"):
        parts.append(
            f"**Shortened: every run was cut to {facts['budget']:,} steps. "
            "These are not results of convergence.**"
        )
    return parts


def _draw(figure: Figure, folder: Path) -> list[Path]:
    """SVG always; PNG and PDF where matplotlib is installed."""
    path = folder / f"{figure.name}.svg"
    written = [write_panels(figure.plots, path, columns=figure.columns)]
    if find_spec("matplotlib"):
        from crossbatch.reports.figures import draw_panels

        written += draw_panels(figure.plots, folder, figure.name, columns=figure.columns)
    return written


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    flat = [_flat(row) for row in rows]
    heads = list(dict.fromkeys(key for row in flat for key in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings by dotted key; lists as words."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            flat[f"{prefix}{key}"] = " ".join(str(entry) for entry in value)
        else:
            flat[f"{prefix}{key}"] = value
    return flat
