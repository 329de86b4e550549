"""Number of CPU threads for a training step: small steps are faster, and cheaper, on one.

Evaluation is made of large products, which gain from all of them.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crossbatch.training.step import Trainer, TrainingBatch

WORTH_IT = 1.4  # less of a gain is not worth the cores, which another run could use
STEPS = 5  # timed for each number of threads, the first not counted


def measured_threads(trainer: Trainer, batch: TrainingBatch) -> int:
    """1, or the number of cores where that makes a step at least `WORTH_IT` times faster.

    Only the forward and backward passes are timed; nothing is learned from them, and the state of
    the random generators is as before.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores in (None, 1) or batch.item_ids.device.type != "cpu":
        return torch.get_num_threads()
    seconds = {threads: _seconds(trainer, batch, threads) for threads in (1, cores)}
    return cores if seconds[1] >= WORTH_IT * seconds[cores] else 1


def _seconds(trainer: Trainer, batch: TrainingBatch, threads: int) -> float:
    """The shortest of a few steps: whatever else the machine does only makes them longer."""
    taken = []
    with using(threads), torch.random.fork_rng():
        for _ in range(STEPS):
            start = time.perf_counter()
            u, positives, _, loss = trainer.forward(batch)
            trainer.backward(u, positives, loss)
            taken.append(time.perf_counter() - start)
            trainer.optimizer.forget()
    return min(taken[1:])


@contextmanager
def using(threads: int) -> Iterator[None]:
    """So many threads inside, as many as before afterwards."""
    earlier = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(earlier)
