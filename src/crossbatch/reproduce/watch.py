"""What a grid shows while it works: one bar for all runs, one line for each run under way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from crossbatch.files import read_document
from crossbatch.reproduce.forecast import Forecast, in_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.reproduce.design import Cell

TAIL = 8192  # bytes at the end of a journal that surely hold its newest evaluation or step


class Watcher(Protocol):
    """Is told how a grid goes on."""

    def begin(self, cells: Sequence[Cell], waiting: Sequence[Cell]) -> None:
        """The grid has `cells`, of which `waiting` have no result yet."""

    def tick(self, running: Sequence[Cell], waiting: Sequence[Cell]) -> None:
        """Called several times a second."""

    def finished(self, cell: Cell) -> None:
        """A run has its result."""

    def failed(self, cell: Cell, message: str) -> None:
        """A run could not go on."""

    def end(self) -> None:
        """The grid is over, or was stopped."""


class SilentWatcher:
    """Shows nothing."""

    def begin(self, cells: Sequence[Cell], waiting: Sequence[Cell]) -> None:
        """Nothing."""

    def tick(self, running: Sequence[Cell], waiting: Sequence[Cell]) -> None:
        """Nothing."""

    def finished(self, cell: Cell) -> None:
        """Nothing."""

    def failed(self, cell: Cell, message: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class TerminalWatcher:
    """A live display on stderr.

    Args:
        out: The grid's folder.
        jobs: Workers at a time, for the time left.
    """

    def __init__(self, out: Path, jobs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.out, self.jobs = out, jobs
        self._bar = Progress(
            TextColumn("[bold]{task.description}[/]"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            console=Console(stderr=True),
            refresh_per_second=2,
        )
        self._cells: list[Cell] = []
        self._forecast = Forecast({})
        self._all: Any = None
        self._tasks: dict[str, Any] = {}

    def begin(self, cells: Sequence[Cell], waiting: Sequence[Cell]) -> None:
        """Show the bar."""
        self._cells = list(cells)
        self._forecast = Forecast.of(self._cells, self.out)
        done = len(cells) - len(waiting)
        self._all = self._bar.add_task("runs", total=len(cells), completed=done, status="")
        self._bar.start()

    def tick(self, running: Sequence[Cell], waiting: Sequence[Cell]) -> None:
        """Move the lines."""
        done = len(self._cells) - len(running) - len(waiting)
        minutes = self._forecast.minutes([*running, *waiting])
        left = "" if minutes is None else f"about {in_words(minutes / self.jobs)} left"
        self._bar.update(self._all, completed=done, status=left)
        names = {cell.folder for cell in running}
        for gone in set(self._tasks) - names:
            self._bar.remove_task(self._tasks.pop(gone))
        for cell in running:
            if cell.folder not in self._tasks:
                self._tasks[cell.folder] = self._bar.add_task(
                    cell.folder, total=cell.recipe.train.max_steps, status="starting"
                )
            step, status = _latest(self.out / cell.folder, cell.recipe.train.metric)
            self._bar.update(self._tasks[cell.folder], completed=step, status=status)

    def finished(self, cell: Cell) -> None:
        """Print the run's result above the bar."""
        self._forecast = Forecast.of(self._cells, self.out)
        result = read_document(self.out / cell.folder / "result.json", "train the run again")
        split = "test" if cell.test else "valid"
        value = result[split][cell.recipe.train.metric]
        self._say(
            f"{cell.folder}: {split} {cell.recipe.train.metric} {100 * value:.2f} %, best at step "
            f"{result['best_step']:,} of {result['steps']:,}, "
            f"{in_words(result['convergence_minutes'])}"
        )

    def failed(self, cell: Cell, message: str) -> None:
        """Print what went wrong above the bar."""
        self._say(f"{cell.folder} failed: {message.splitlines()[-1]}", style="red")

    def end(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()

    def _say(self, text: str, style: str = "") -> None:
        self._bar.console.print(text, style=style, highlight=False, soft_wrap=True)


def _latest(run: Path, metric: str) -> tuple[int, str]:
    """Step and newest validation metric of a run under way, from the end of its journal."""
    try:
        with (run / "journal.jsonl").open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return 0, "starting"
    step, status = 0, "before its first evaluation"
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # cut off at either end
            continue
        step = event["step"]
        if event["event"] == "eval":
            status = f"{metric} {100 * event['metrics'][metric]:.2f} %"
    return step, status
