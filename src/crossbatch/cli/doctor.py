"""`crossbatch doctor`: is everything in order, and if not, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossbatch.cli.exit_codes import FAILED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crossbatch.health import Finding

MARKS = {"ok": "[green]✓[/]", "note": "[yellow]•[/]", "problem": "[bold red]✗[/]"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("doctor")(doctor)


def doctor(
    data: Annotated[Path | None, typer.Option(help="Also look at this dataset folder.")] = None,
    run: Annotated[Path | None, typer.Option(help="Also look at this run folder.")] = None,
    bundle: Annotated[Path | None, typer.Option(help="Also look at this bundle.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Check the installation, and datasets, runs and bundles, with a remedy for each problem.

    Exit code 0 means that there is no problem, 1 that there is one.

    Example: crossbatch doctor --data shop --run runs/first --bundle first.bundle
    """
    from crossbatch.health import examine

    given = {"environment": Path(), "data": data, "run": run, "bundle": bundle}
    folders = {subject: path for subject, path in given.items() if path is not None}
    found = examine(folders)
    problems = sum(each.level == "problem" for findings in found.values() for each in findings)
    if as_json:
        _print_json(found, problems)
    else:
        _print(found, folders, problems)
    if problems:
        raise typer.Exit(FAILED)


def _print_json(found: Mapping[str, Sequence[Finding]], problems: int) -> None:
    import json
    from dataclasses import asdict

    findings = {subject: [asdict(each) for each in row] for subject, row in found.items()}
    typer.echo(json.dumps({"healthy": not problems, "findings": findings}, indent=1))


def _print(
    found: Mapping[str, Sequence[Finding]], folders: Mapping[str, Path], problems: int
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for subject, findings in found.items():
        where = "" if subject == "environment" else f" {folders[subject]}"
        table = Table(
            title=escape(f"{subject}{where}"), title_justify="left", box=None, show_header=False
        )
        for each in findings:
            remedy = f"\n[cyan]→ {escape(each.remedy)}[/]" if each.remedy else ""
            table.add_row(MARKS[each.level], escape(each.check), escape(each.message) + remedy)
        console.print(table)
    console.print(f"{problems} problems" if problems else "no problem", highlight=False)
