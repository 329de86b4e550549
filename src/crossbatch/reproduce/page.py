"""What an experiment writes: a Markdown page, the same numbers as CSV and JSON, and figures.

write_page(GridFolder(Path("paper")), "table1", "Table 1", [table, note], rows)
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from crossbatch.files import sealed, write_document, write_file
from crossbatch.reports.markdown import literal
from crossbatch.reports.svg import write_panels

if TYPE_CHECKING:
    from pathlib import Path

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


def write_page(
    folder: GridFolder,
    name: str,
    title: str,
    parts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    figure: Figure | None = None,
) -> list[Path]:
    """Write the files `name` of one experiment into the grid's folder.

    `parts` are Markdown below the title, `rows` the numbers for CSV and JSON. The figure is drawn
    below the tables, if it has plots.
    """
    out, facts, drawn, text = folder.path, folder.facts, [], [f"# {title}"]
    if data := facts.get("dataset"):
        text.append(
            f"Data: {literal(data['name'])}, {data['users']:,} users, {data['items']:,} items, "
            f"{data['interactions']:,} interactions."
        )
    if facts.get("budget"):
        text.append(
            f"**Shortened: every run was cut to {facts['budget']:,} steps. "
            "These are not results of convergence.**"
        )
    text += parts
    if figure and figure.plots:
        drawn = _draw(figure, out / "figures")
        caption = literal(figure.caption)
        text.append(f"![{caption}](figures/{figure.name}.svg)")
        text += [f"*{caption}*"] if figure.captioned else []
    document = {"experiment": name} | facts | {"rows": rows}
    document = sealed(json.loads(json.dumps(document)))  # keys as they will be read
    return [
        write_file(out / f"{name}.md", ("\n\n".join(text) + "\n").encode()),
        write_file(out / f"{name}.csv", _csv(rows).encode()),
        write_document(out / f"{name}.json", document),
        *drawn,
    ]


def run_link(run: Run, folder: GridFolder, text: str) -> str:
    """A Markdown link from a page of the grid to a run's folder; plain text for a record."""
    if not run.path.is_relative_to(folder.path):
        return literal(text)
    return f"[{literal(text)}]({quote(run.path.relative_to(folder.path).as_posix())})"


def run_links(runs: Sequence[Run], folder: GridFolder) -> str:
    """The seeds of some runs, each linked to its folder."""
    ordered = sorted(runs, key=lambda run: run.seed or 0)
    return " ".join(run_link(run, folder, str(run.seed)) for run in ordered)


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
        else:
            words = isinstance(value, list | tuple)
            flat[f"{prefix}{key}"] = " ".join(map(str, value)) if words else value
    return flat
