"""How long commands show that they work: one bar a stage, on a terminal only."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crossbatch.data.progress import Progress


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator[Progress]:
    """Show one bar a stage on a terminal; nothing elsewhere."""
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
