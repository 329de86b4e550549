"""`crossbatch report RUN… --out report.html`: compare runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders; unfinished ones too.")
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the tables as Markdown.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also draw PNG and PDF figures (needs matplotlib)."),
    ] = None,
) -> None:
    """Compare runs: tables with intervals, curves, diagnostics and settings on one HTML page.

    The page is a single file that needs no network.

    Example: crossbatch report runs/first runs/second --out report.html
    """
    from crossbatch.reports.html import write_html
    from crossbatch.reports.runs import read_runs

    found = read_runs(runs)
    written = [write_html(found, out)]
    if markdown is not None:
        from crossbatch.reports.markdown import write_markdown

        written.append(write_markdown(found, markdown))
    if figures is not None:
        from crossbatch.reports.figures import write_figures

        written += write_figures(found, figures)
    for path in written:
        typer.echo(path)
