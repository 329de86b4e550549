"""The training loop: steps and evaluations until nothing improves.

reason = train_loop(trainer, dataset.batches(128, seed=0), callbacks, EarlyStopping(20), limits)
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from crossbatch.training.step import StepRecord, Trainer, TrainingBatch


@dataclass(slots=True)
class EarlyStopping:
    """Best value of a metric, and how many evaluations have passed without beating it.

    As in ComiRec's code, training stops when the misses *exceed* the patience.
    """

    patience: int
    best: float = float("-inf")
    best_step: int = 0
    misses: int = 0

    def update(self, value: float, step: int, *, counting: bool = True) -> bool:
        """Take a new value; True if it is the best so far. Misses count only while `counting`."""
        if value > self.best:
            self.best, self.best_step, self.misses = value, step, 0
            return True
        self.misses += counting
        return False

    @property
    def exhausted(self) -> bool:
        """Whether to stop."""
        return self.misses > self.patience


class Callbacks(Protocol):
    """What a loop calls between its steps."""

    def evaluate(self) -> Mapping[str, float]:
        """Validation metrics of the model as it is."""

    def on_step(self, record: StepRecord) -> None:
        """Called after every step."""

    def on_eval(self, metrics: Mapping[str, float], best: bool) -> None:
        """Called after every evaluation with its metrics and whether they are the best so far."""

    def interrupted(self) -> bool:
        """Asked after every optimiser step; True ends training."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a loop evaluates, and when it ends.

    Attributes:
        max_steps: Batches in all, those before a resume included.
        eval_every: Batches between evaluations.
        metric: Which of the metrics decides.
        counting_from: Misses count from this step on; the end of the sampler's warm-up.
    """

    max_steps: int
    eval_every: int
    metric: str = "recall@50"
    counting_from: int = 0


def train_loop(
    trainer: Trainer,
    batches: Iterator[TrainingBatch],
    callbacks: Callbacks,
    stopping: EarlyStopping,
    limits: Limits,
) -> str:
    """Train until patience or `max_steps` runs out.

    Args:
        trainer: Takes the steps; its `step` counts on.
        batches: Endless batches, the next one first.
        callbacks: What to do after steps and evaluations.
        stopping: Early-stopping state, updated in place.
        limits: When to evaluate, and when to end.

    Returns:
        Why training ended: `"patience"`, `"max_steps"` or `"interrupted"`.
    """
    while trainer.step < limits.max_steps:
        if stopping.exhausted:
            return "patience"
        callbacks.on_step(trainer.train_step(next(batches)))
        step = trainer.step
        if step % limits.eval_every == 0 or step == limits.max_steps:
            trainer.optimizer.flush()
            metrics = callbacks.evaluate()
            counting = step > limits.counting_from
            best = stopping.update(metrics[limits.metric], step, counting=counting)
            callbacks.on_eval(metrics, best)
        # Between optimiser steps, so that a checkpoint never holds half a gradient.
        if step % trainer.accumulate == 0 and callbacks.interrupted():
            return "interrupted"
    return "max_steps"


@contextmanager
def interrupt_flag(*, launched: bool = False) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed; a second Ctrl-C interrupts at once.

    Args:
        launched: Whether a launcher started this process among others. It passes on Ctrl-C, which
            then comes twice, and ends the others with SIGTERM when one fails; it has a limit of its
            own for those that do not end.
    """
    pressed = False

    def on_signal(*_: object) -> None:
        nonlocal pressed
        if pressed and not launched:
            raise KeyboardInterrupt
        pressed = True

    signals = (signal.SIGINT, signal.SIGTERM) if launched else (signal.SIGINT,)
    try:
        earlier = [signal.signal(number, on_signal) for number in signals]
    except ValueError:  # not the main thread, which alone receives signals
        yield lambda: False
        return
    try:
        yield lambda: pressed
    finally:
        for number, handler in zip(signals, earlier, strict=True):
            signal.signal(number, handler)
