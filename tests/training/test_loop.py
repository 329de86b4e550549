"""The loop: when it evaluates, when it ends, what it calls; early stopping."""

from dataclasses import dataclass, field
from itertools import repeat

import pytest

from crossbatch.config import TrainConfig
from crossbatch.training.loop import EarlyStopping, train_loop


@dataclass
class FakeTrainer:
    """Counts steps."""

    accumulate: int = 1
    step: int = 0

    @property
    def optimizer(self):
        return self

    def flush(self): ...

    def train_step(self, batch):
        self.step += 1
        return self.step


@dataclass
class Recorder:
    """Callbacks that keep what they were called with."""

    values: list
    stop_after: int = 10**9
    steps: list = field(default_factory=list)
    evaluations: list = field(default_factory=list)

    def evaluate(self):
        return {"recall@50": self.values[len(self.evaluations)]}

    def on_step(self, record):
        self.steps.append(record)

    def on_eval(self, metrics, best):
        self.evaluations.append((self.steps[-1], metrics["recall@50"], best))

    def interrupted(self):
        return self.steps[-1] >= self.stop_after


@pytest.mark.parametrize(
    ("values", "patience", "options", "reason", "evaluations"),
    [
        ([1, 2, 3], 5, {}, "max_steps", [(4, 1, True), (8, 2, True), (10, 3, True)]),
        ([2, 1, 3], 0, {}, "patience", [(4, 2, True), (8, 1, False)]),
        (
            [2, 1, 3],
            0,
            {"counting_from": 8},
            "max_steps",
            [(4, 2, True), (8, 1, False), (10, 3, True)],
        ),
    ],
)
def test_evaluations_and_the_end(values, patience, options, reason, evaluations):
    recorder = Recorder(values)
    train, stopping = TrainConfig(max_steps=10, eval_every=4), EarlyStopping(patience)
    found = train_loop(FakeTrainer(), repeat(None), recorder, stopping, train, **options)
    assert (found, recorder.evaluations) == (reason, evaluations)


@pytest.mark.parametrize(("accumulate", "last"), [(1, 5), (2, 6), (4, 8)])
def test_an_interruption_waits_for_the_optimiser_step(accumulate, last):
    recorder = Recorder([], stop_after=5)
    train = TrainConfig(max_steps=10, eval_every=100)
    trainer = FakeTrainer(accumulate)
    found = train_loop(trainer, repeat(None), recorder, EarlyStopping(1), train)
    assert (found, recorder.steps[-1]) == ("interrupted", last)


def test_early_stopping_counts_as_comirec_does():
    stopping = EarlyStopping(patience=2)
    assert stopping.update(0.1, 1000)
    assert not stopping.update(0.1, 2000)  # equal is no improvement
    assert not stopping.update(0.05, 3000)
    assert not stopping.exhausted  # two misses do not exceed a patience of two
    stopping.update(0.09, 4000)
    assert stopping.exhausted
    assert (stopping.best, stopping.best_step) == (0.1, 1000)


def test_misses_before_counting_starts_are_free():
    stopping = EarlyStopping(patience=0)
    stopping.update(0.2, 1)
    for step in range(2, 10):
        stopping.update(0.1, step, counting=False)
    assert not stopping.exhausted
    stopping.update(0.1, 10)
    assert stopping.exhausted
