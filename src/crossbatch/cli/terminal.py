"""What commands share: exit codes, common options, progress bars."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crossbatch.data.progress import Progress

FAILED = 1  # something failed, or `doctor` found a problem
MISTAKE = 2  # the user can correct it: an option, a recipe, a file, a full disk
INTERRUPTED = 130  # Ctrl-C; what shells report after it

Data = Annotated[Path, typer.Option("--data", help="Dataset folder from prepare or synth.")]
MovedData = Annotated[
    Path | None, typer.Option(help="Dataset folder, if it has moved since training.")
]
DatasetOut = Annotated[Path, typer.Option("--out", "-o", help="Dataset folder to create.")]
BundleOut = Annotated[Path, typer.Option("--out", "-o", help="Bundle folder to create.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", "--force", help="Replace an existing output.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key of the recipe."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator[Progress]:
    """Show one progress bar per stage on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _stage, _done, _total: None
        return
    columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Bars(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    bars.update(task, total=1, completed=1)
                tasks[stage] = bars.add_task(stage, total=total, note="")
            note = f"{done:,}" if total is None and done else ""
            bars.update(tasks[stage], completed=done, total=total, note=note)

        yield report
