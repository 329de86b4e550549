"""Journal lines to TensorBoard or MLflow, each an extra of its own behind one flag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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

        self._writer: Any = SummaryWriter(str(run / "tensorboard"))

    def event(self, event: str, step: int, fields: dict[str, Any]) -> None:
        """Write the line's numbers as scalars."""
        for name, value in scalars(event, fields).items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush to disk."""
        self._writer.close()


class MLflow:
    """Metrics of an MLflow run, on the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, run: Path) -> None:
        import mlflow  # type: ignore[import-not-found,unused-ignore]

        self._mlflow: Any = mlflow
        mlflow.start_run(run_name=run.name)

    def event(self, event: str, step: int, fields: dict[str, Any]) -> None:
        """Log the line's numbers as metrics."""
        # MLflow allows no @ in names.
        numbers = {k.replace("@", "_at_"): v for k, v in scalars(event, fields).items()}
        if numbers:
            self._mlflow.log_metrics(numbers, step=step)

    def close(self) -> None:
        """End the MLflow run."""
        self._mlflow.end_run()


TRACKERS: dict[str, Callable[[Path], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def open_trackers(names: list[str], run: Path) -> tuple[Tracker, ...]:
    """Open the trackers that `--track` names."""
    trackers = []
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"--track must be one of {', '.join(TRACKERS)}, got {name!r}")
        try:
            trackers.append(TRACKERS[name](run))
        except ImportError:
            raise ConfigError(f"--track {name} needs an extra; install crossbatch[track]") from None
    return tuple(trackers)


def scalars(event: str, fields: dict[str, Any]) -> dict[str, float]:
    """The numbers of a journal line as `event/name`."""
    flat: dict[str, float] = {}
    for name, value in fields.items():
        nested = value if isinstance(value, dict) else {name: value}
        for key, number in nested.items():
            if isinstance(number, (int, float)) and number == number:
                flat[f"{event}/{key}"] = float(number)
    return flat
