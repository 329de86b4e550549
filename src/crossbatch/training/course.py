"""`Course`: training under way, and what happens after each of its steps and evaluations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from crossbatch.training.threads import using

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from crossbatch.evaluation import Evaluation
    from crossbatch.training.journal import Journal
    from crossbatch.training.loop import EarlyStopping
    from crossbatch.training.monitor import Monitor
    from crossbatch.training.progress import Progress
    from crossbatch.training.run_folder import RunFolder
    from crossbatch.training.step import StepRecord, Trainer

# What a checkpoint remembers beside the training state.
NOTHING_YET = {"journal": 0, "eval_seconds": 0.0}


class Probe(Protocol):
    """Measures the towers while they learn, without changing what they learn.

    One whose measurements span several steps says by an attribute `measuring` that one is under
    way: a run that is stopped then goes on from the checkpoint before it.
    """

    def __call__(self, trainer: Trainer, step: int) -> Mapping[str, Any] | None:
        """Called after every step; what it returns becomes a journal line `"probe"`."""


@dataclass(slots=True)
class Course:
    """The trainer's callbacks, and what they share.

    Attributes:
        trainer: Whose training it is.
        stopping: Early-stopping state.
        folder: Where checkpoints go.
        journal: Where lines go.
        monitor: Clock and diagnostics.
        write: Writes a line to the journal and to whoever else listens.
        measure: Evaluates the model on validation users.
        progress: Shows each step.
        probe: Measures beside training.
        keep_checkpoints: Newest ones kept.
        eval_seconds: Time of evaluations, earlier sittings included.
        eval_threads: CPU threads of evaluations.
        users: Validation users of the last evaluation.
        chosen: The sampler that an `"auto"` one stands for.
        interrupted: Whether Ctrl-C was pressed.
    """

    trainer: Trainer
    stopping: EarlyStopping
    folder: RunFolder
    journal: Journal
    monitor: Monitor
    write: Callable[..., None]
    measure: Callable[[], Evaluation]
    progress: Progress
    probe: Probe | None
    keep_checkpoints: int
    eval_seconds: float
    eval_threads: int
    users: int = 0
    chosen: dict[str, Any] | None = None
    interrupted: Callable[[], bool] = lambda: False

    @property
    def minutes(self) -> float:
        """Training and evaluating so far."""
        return (self.monitor.seconds + self.eval_seconds) / 60

    def save(self) -> None:
        """Write a checkpoint that an exact resume needs no more than."""
        saved = {
            "journal": self.journal.length(),
            "journal_crc32": self.journal.crc32,
            "eval_seconds": self.eval_seconds,
            "threads": torch.get_num_threads(),
            "eval_threads": self.eval_threads,
            "sampler": self.chosen,
        } | self.monitor.state()
        self.folder.save_checkpoint(self.trainer, self.stopping, saved, self.keep_checkpoints)

    def stop(self) -> None:
        """Save before an early end, unless the probe is in the middle of a measurement.

        The last checkpoint can repeat that; from one that was taken now it could not be finished.
        """
        if not getattr(self.probe, "measuring", False):
            self.save()

    def evaluate(self) -> Mapping[str, float]:
        """Metrics of the model as it is; the clock of training stands still."""
        self.monitor.pause()
        began = time.perf_counter()
        with using(self.eval_threads):
            evaluation = self.measure()
        self.eval_seconds += time.perf_counter() - began
        self.users = evaluation.num_users
        return evaluation.means()

    def on_eval(self, metrics: Mapping[str, float], best: bool) -> None:
        """Keep what an evaluation found, and a checkpoint."""
        seconds = round(self.monitor.seconds + self.eval_seconds, 4)
        fields = {"seconds": seconds, "split": "valid", "users": self.users}
        self.write("eval", self.trainer.step, **fields, metrics=dict(metrics))
        if best:
            self.folder.save_best(self.trainer, dict(metrics))
        self.save()
        self.monitor.go_on()

    def on_step(self, record: StepRecord) -> None:
        """Take note of a step."""
        self.monitor(record)
        if self.probe is not None:
            self.monitor.pause()
            found = self.probe(self.trainer, record.step)
            if found:
                self.write("probe", record.step, **found)
            self.monitor.go_on()
        self.progress.step(record.step, record.loss)
