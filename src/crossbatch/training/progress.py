"""Progress of a run: a live line in the terminal, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class Progress:
    """What a run reports while it trains; it shows nothing unless methods are overridden."""

    def start(self, step: int, total: int) -> None:
        """Training begins at `step` of at most `total`."""

    def step(self, step: int, loss: Tensor) -> None:
        """A step is done."""

    def items(self, done: int, total: int) -> None:
        """An evaluation has encoded so many items of the catalogue."""

    def event(self, event: str, step: int, fields: dict[str, Any]) -> None:
        """A journal line was written."""

    def say(self, message: str) -> None:
        """Show a message to the user."""

    def stop(self) -> None:
        """Training is over."""


class Terminal(Progress):
    """One live line: step, loss, validation metric, negatives per second, longest time left."""

    def __init__(self, metric: str) -> None:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        from crossbatch.printing import console

        self.metric = metric
        self._bar = Bar(
            TextColumn("[bold]step {task.completed:,}[/]"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[status]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=console(stderr=True),
            refresh_per_second=4,
        )
        self._parts = {"loss": "", "metric": "", "rate": "", "items": ""}
        self._task: Any = None
        self._best = float("-inf")

    def start(self, step: int, total: int) -> None:
        """Show the line."""
        self._task = self._bar.add_task("", total=total, completed=step, status="starting")
        self._bar.start()

    def step(self, step: int, loss: Tensor) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=step)

    def items(self, done: int, total: int) -> None:
        """Show how many items an evaluation has encoded, where it takes several steps."""
        self._parts["items"] = f"encoding items {done:,}/{total:,}" if done < total else ""
        self._show()

    def event(self, event: str, step: int, fields: dict[str, Any]) -> None:
        """Show the numbers of a journal line."""
        if event == "train":
            self._parts["loss"] = f"loss {fields['loss']:.2f}"
            self._parts["rate"] = f"{fields['negatives_per_second'] / 1e6:.0f} M neg/s"
        elif event == "eval":
            value = fields["value"]
            self._best = max(self._best, value)
            self._parts["metric"] = f"{self.metric} {value:.3f} (best {self._best:.3f})"
        elif event == "warning":
            self.say(f"step {step}: {fields['message']}")
        self._show()

    def _show(self) -> None:
        status = "  ".join(part for part in self._parts.values() if part)
        if self._task is not None:
            self._bar.update(self._task, status=status or "starting")

    def say(self, message: str) -> None:
        """Print above the line."""
        self._bar.console.print(f"crossbatch: {message}", style="yellow", highlight=False)

    def stop(self) -> None:
        """Leave the line as it is."""
        self._bar.stop()
