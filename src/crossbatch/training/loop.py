"""The training loop: steps and evaluations until nothing improves.

reason = train_loop(trainer, dataset.batches(128, seed=0), session, EarlyStopping(20), recipe.train)
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crossbatch.config import TrainConfig
    from crossbatch.training.run import Session
    from crossbatch.training.step import Trainer, TrainingBatch


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


def train_loop(
    trainer: Trainer,
    batches: Iterator[TrainingBatch],
    session: Session,
    stopping: EarlyStopping,
    train: TrainConfig,
    counting_from: int = 0,
) -> str:
    """Train until patience or `max_steps` runs out; misses count after step `counting_from`.

    Returns:
        Why training ended: `"patience"`, `"max_steps"` or `"interrupted"`.
    """
    while trainer.step < train.max_steps:
        if stopping.exhausted:
            return "patience"
        session.on_step(trainer.train_step(next(batches)))
        step = trainer.step
        if step % train.eval_every == 0 or step == train.max_steps:
            trainer.optimizer.flush()
            metrics = session.evaluate()
            best = stopping.update(metrics[train.metric], step, counting=step > counting_from)
            session.on_eval(metrics, best)
        # Between optimiser steps, so that a checkpoint never holds half a gradient.
        if step % trainer.accumulate == 0 and session.interrupted():
            return "interrupted"
    return "max_steps"


@contextmanager
def interrupt_flag(*, launched: bool = False) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed; a second Ctrl-C interrupts at once.

    A launcher of several processes (`launched`) repeats Ctrl-C, sends SIGTERM to the others when
    one fails, and has a time limit of its own for those that do not end.
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
