"""Progress of a grid on the terminal, and how long the rest of it may take.

`GridProgress` shows one bar for all runs and one line for each run under way.
"""

from __future__ import annotations

import json
import statistics
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from crossbatch.files import read_document

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.reproduce.design import PlannedRun

TAIL = 8192  # bytes at the end of a journal that surely hold its newest evaluation or step


def minutes_left(
    runs: Sequence[PlannedRun], waiting: Sequence[PlannedRun], out: Path
) -> float | None:
    """Minutes that the waiting runs take one after another; None while no run is finished.

    A run is expected to take as long as finished ones of its model and sampler on average, else of
    its model, else of any.
    """
    taken: dict[tuple[str, ...], list[float]] = {}
    for run in runs:
        if run.is_finished(out):
            result = read_document(out / run.folder / "result.json", "train the run again")
            for kind in _kinds(run):
                taken.setdefault(kind, []).append(float(result["convergence_minutes"]))
    if not taken:
        return None
    return sum(
        next(statistics.fmean(taken[kind]) for kind in _kinds(run) if kind in taken)
        for run in waiting
    )


def _kinds(run: PlannedRun) -> list[tuple[str, ...]]:
    """Groups of similar runs that it belongs to, the smallest first."""
    model, sampler = run.recipe.model.name, str(run.recipe.sampler["name"])
    return [(model, sampler), (model,), ()]


def duration_text(minutes: float) -> str:
    """Minutes in print: "45 s", "12 min", "3 h 20 min"."""
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{int(minutes // 60)} h {int(minutes % 60)} min"


class GridProgress:
    """A live display on stderr of a grid that trains `jobs` runs at a time."""

    def __init__(self, out: Path, runs: Sequence[PlannedRun], *, jobs: int, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        from crossbatch.printing import console

        self.out, self.runs, self.jobs, self.quiet = out, runs, jobs, quiet
        self._bars = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            console=console(stderr=True, quiet=quiet),
            refresh_per_second=2,
            disable=quiet,
        )
        self._all = self._bars.add_task("runs", total=len(runs), status="")
        self._tasks: dict[str, Any] = {}
        self._done = -1
        self._bars.start()

    def update(self, training: Sequence[PlannedRun], waiting: Sequence[PlannedRun]) -> None:
        """Move the bars."""
        if self.quiet:
            return
        done = len(self.runs) - len(training) - len(waiting)
        if done != self._done:
            self._done = done
            minutes = minutes_left(self.runs, [*training, *waiting], self.out)
            left = "" if minutes is None else f"about {duration_text(minutes / self.jobs)} left"
            self._bars.update(self._all, completed=done, status=left)
        for ended in set(self._tasks) - {run.folder for run in training}:
            self._bars.remove_task(self._tasks.pop(ended))
        for run in training:
            train, name = run.recipe.train, run.folder
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=train.max_steps, status="")
            step, status = _latest(self.out / name / "journal.jsonl", train.metric)
            self._bars.update(self._tasks[name], completed=step, status=status)

    def report_result(self, run: PlannedRun) -> None:
        """Print a finished run's result above the bars."""
        result = read_document(self.out / run.folder / "result.json", "train the run again")
        split, metric = "test" if run.test else "valid", run.recipe.train.metric
        self._print(
            f"{run.folder}: {split} {metric} {100 * result[split][metric]:.2f} %, best at step "
            f"{result['best_step']:,} of {result['steps']:,}, "
            f"{duration_text(result['convergence_minutes'])}"
        )

    def report_failure(self, run: PlannedRun, message: str) -> None:
        """Print what went wrong above the bars."""
        self._print(f"{run.folder} failed: {message.splitlines()[-1]}", style="red")

    def end(self) -> None:
        """Leave the bars as they are."""
        self._bars.stop()

    def _print(self, text: str, style: str = "") -> None:
        self._bars.console.print(text, style=style, highlight=False, soft_wrap=True)


def _latest(journal: Path, metric: str) -> tuple[int, str]:
    """Step and newest validation metric of a run under way, from the end of its journal."""
    step, status = 0, "before its first evaluation"
    for line in journal.read_bytes()[-TAIL:].splitlines() if journal.is_file() else ():
        with suppress(ValueError):  # a line that is cut off at either end
            event = json.loads(line)
            step = event["step"]
            if event["event"] == "eval":
                status = f"{metric} {100 * event['metrics'][metric]:.2f} %"
    return step, status
