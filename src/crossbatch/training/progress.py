"""What follows a run: a live line in the terminal, and TensorBoard, MLflow or Weights & Biases.

All of them take the lines of the journal; a tracker is behind one flag each.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from crossbatch.errors import ConfigError, needs_extra
from crossbatch.files import flat, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

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


class Tracker(Protocol):
    """A place that journal lines go to."""

    def event(self, event: str, step: int, fields: dict[str, Any]) -> None:
        """Take one journal line."""

    def close(self) -> None:
        """Finish writing."""


class TensorBoard:
    """Scalars under RUN/tensorboard; look at them with `tensorboard --logdir RUN`."""

    def __init__(self, run: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Opened at the first line: a run folder that is refused must stay as it is.
        self._open: Callable[..., Any] = partial(SummaryWriter, str(run / "tensorboard"))
        self._writer: Any = None

    def event(self, event: str, step: int, fields: dict[str, Any]) -> None:
        """Write the line's numbers as scalars."""
        if self._writer is None:
            # Steps after the last checkpoint of a killed session are repeated.
            self._writer = self._open(purge_step=step + 1 if event == "resume" else None)
        for name, value in scalars(event, fields).items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush to disk."""
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """Parameters and metrics of an MLflow run; a resumed training continues it.

    They go where MLFLOW_TRACKING_URI says, else into `mlflow.db` in the working folder, as MLflow
    itself would have it.
    """

    def __init__(self, run: Path) -> None:
        import mlflow  # type: ignore[import-not-found,unused-ignore]

        self._mlflow: Any = mlflow
        self._run = run

    def event(self, event: str, step: int, fields: dict[str, Any]) -> None:
        """Log the line's numbers as metrics, and the recipe once."""
        # MLflow allows no @ in names.
        numbers = {k.replace("@", "_at_"): v for k, v in scalars(event, fields).items()}
        try:
            if self._mlflow.active_run() is None:
                self._start()
            if numbers:
                self._mlflow.log_metrics(numbers, step=step)
        except self._mlflow.exceptions.MlflowException as error:
            raise ConfigError(
                f"--track mlflow: {str(error).splitlines()[0]}; set MLFLOW_TRACKING_URI to a "
                "server or to sqlite:///FILE, or leave --track out"
            ) from None

    def close(self) -> None:
        """End the MLflow run."""
        self._mlflow.end_run()

    def _start(self) -> None:
        remembered = self._run / "mlflow_run_id.txt"
        if remembered.is_file():
            self._mlflow.start_run(run_id=remembered.read_text().strip())
            return
        started = self._mlflow.start_run(run_name=self._run.name)
        config = json.loads((self._run / "config.json").read_text())
        self._mlflow.log_params(flat(config))
        write_file(remembered, f"{started.info.run_id}\n".encode())  # once the run is complete


class WandB:
    """A run of Weights & Biases; a resumed training continues it.

    Project, account and mode are those of wandb's own variables: WANDB_PROJECT, WANDB_API_KEY,
    WANDB_MODE=offline to keep it in RUN/wandb for `wandb sync`.
    """

    def __init__(self, run: Path) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore]

        self._wandb: Any = wandb
        self._folder, self._run = run, None

    def event(self, event: str, step: int, fields: dict[str, Any]) -> None:
        """Log the line's numbers, and the recipe once."""
        numbers = scalars(event, fields)
        try:
            run = self._run or self._start()
            if numbers:
                # steps as a number of its own: wandb refuses those that a resume repeats
                run.log(numbers | {"step": step})
        except self._wandb.errors.Error as error:
            raise ConfigError(
                f"--track wandb: {str(error).splitlines()[0]}; log in with `wandb login`, set "
                "WANDB_MODE=offline, or leave --track out"
            ) from None

    def close(self) -> None:
        """End the run and wait until it is written."""
        if self._run is not None:
            self._run.finish()

    def _start(self) -> Any:
        remembered = self._folder / "wandb_run_id.txt"
        config = json.loads((self._folder / "config.json").read_text())
        known = remembered.read_text().strip() if remembered.is_file() else None
        self._run = run = self._wandb.init(
            id=known,
            resume="allow" if known else None,
            name=self._folder.name,
            dir=str(self._folder.absolute()),
            config=flat(config),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        write_file(remembered, f"{run.id}\n".encode())
        return run


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


@contextmanager
def open_trackers(names: Iterable[str], run: Path) -> Iterator[tuple[Tracker, ...]]:
    """The trackers that `--track` names, closed at the end."""
    trackers: list[Tracker] = []
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"--track must be one of {', '.join(TRACKERS)}, got {name!r}")
        with needs_extra(name, f"--track {name}"):
            trackers.append(TRACKERS[name](run))
    try:
        yield tuple(trackers)
    finally:
        for tracker in trackers:
            tracker.close()


def scalars(event: str, fields: dict[str, Any]) -> dict[str, float]:
    """The numbers of a journal line as `event/name`, or `event/unseen_name`."""
    parts = {key.rpartition(".")[::2]: value for key, value in flat(fields).items()}
    return {
        f"{event}/{'unseen_' if section == 'unseen' else ''}{name}": float(value)
        for (section, name), value in parts.items()
        if isinstance(value, int | float) and value == value
    }
