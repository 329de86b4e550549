"""Progress of long work, reported through one callable, and shown as bars in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[str, int, int | None], None]
"""`progress(stage, done, total)`: total is None where the end is not known in advance."""


def silent(stage: str, done: int, total: int | None) -> None:
    """Report nothing; the default."""


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator[Progress]:
    """Show one progress bar per stage on a terminal, and nothing elsewhere.

    What is fetched from object stores meanwhile is a stage, too.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    from crossbatch.printing import console
    from crossbatch.remote import reporting

    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield silent
        return
    columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Bars(*columns, TimeElapsedColumn(), console=screen, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    bars.update(task, total=1, completed=1)
                tasks[stage] = bars.add_task(stage, total=total, note="")
            note = f"{done:,}" if total is None and done else ""
            bars.update(tasks[stage], completed=done, total=total, note=note)

        with reporting(report):
            yield report
