"""`crossbatch doctor`: checks of the installation, datasets, runs and bundles, with remedies.

A new check is a function of a path that yields findings, and one line in `CHECKS`. Checks import
what they need inside: a missing or broken package is a finding, not a crash.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from crossbatch.cli.doctor import environment, folders
from crossbatch.cli.doctor.findings import Finding, problem
from crossbatch.cli.terminal import FAILED, AsJson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Check = Callable[[Path], Iterable[Finding]]

# What can be examined, and its checks in order; each check gets the folder in question.
CHECKS: Mapping[str, tuple[Check, ...]] = {
    "environment": (
        environment.required_packages,
        environment.extras,
        environment.processors,
        environment.memory,
        environment.gpu,
        environment.disk,
    ),
    "data": (folders.dataset_files, environment.disk, folders.leftovers_beside),
    "run": (
        folders.run_lock,
        folders.run_state,
        folders.run_files,
        folders.best_model,
        folders.checkpoints,
        folders.journal,
        folders.run_dataset,
        folders.run_leftovers,
        environment.disk,
    ),
    "bundle": (folders.bundle_files, folders.leftovers_beside),
}
MARKS = {"ok": "[green]✓[/]", "note": "[yellow]•[/]", "problem": "[bold red]✗[/]"}


def doctor(
    data: Annotated[Path | None, Option(help="Also check this dataset folder.")] = None,
    run: Annotated[Path | None, Option(help="Also check this run folder.")] = None,
    bundle: Annotated[Path | None, Option(help="Also check this bundle.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation, and datasets, runs and bundles, with a remedy for each problem.

    Exit code 0 means that there is no problem, 1 that there is one.

    Example: crossbatch doctor --data shop --run runs/first --bundle first.bundle
    """
    given = {"environment": Path(), "data": data, "run": run, "bundle": bundle}
    paths = {subject: path for subject, path in given.items() if path is not None}
    found = examine(paths)
    problems = sum(each.level == "problem" for findings in found.values() for each in findings)
    if as_json:
        findings = {subject: [asdict(each) for each in row] for subject, row in found.items()}
        typer.echo(json.dumps({"healthy": not problems, "findings": findings}, indent=1))
    else:
        _print(found, paths, problems)
    if problems:
        raise typer.Exit(FAILED)


def examine(paths: Mapping[str, Path]) -> dict[str, list[Finding]]:
    """Run every check of each subject, a key of `CHECKS`, on its folder."""
    return {
        subject: [finding for check in CHECKS[subject] for finding in _run(check, path)]
        for subject, path in paths.items()
    }


def _run(check: Check, path: Path) -> Iterator[Finding]:
    try:
        yield from check(path)
    except ImportError as error:
        remedy = "repair the packages that are reported above"
        yield problem(check.__name__, f"cannot be checked: {error}", remedy)


def _print(found: Mapping[str, list[Finding]], paths: Mapping[str, Path], problems: int) -> None:
    from rich.table import Table
    from rich.text import Text

    from crossbatch.printing import console

    screen = console()
    for subject, findings in found.items():
        where = "" if subject == "environment" else f" {paths[subject]}"
        table = Table(title=f"{subject}{where}", title_justify="left", box=None, show_header=False)
        for each in findings:
            remedy = f"\n→ {each.remedy}" if each.remedy else ""
            message = Text.assemble(each.message, (remedy, "cyan"))
            table.add_row(Text.from_markup(MARKS[each.level]), each.check, message)
        screen.print(table)
    screen.print(f"{problems} problems" if problems else "no problem", highlight=False)
