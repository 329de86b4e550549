"""How often each item is a positive of a training batch: exact probabilities, and raw counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossbatch.data.dataset.arrays import offsets_of, range_positions, user_runs

if TYPE_CHECKING:
    from crossbatch.data.dataset.arrays import ArrayReader

CHUNK_ROWS = 2_000_000  # interactions that are read at once


class TrainingPositives(NamedTuple):
    """How often each item occurs in training; row 0 is padding.

    Attributes:
        counts: Interactions in the training part.  Shape `[num_items + 1]`, int64.
        probabilities: That of being a batch row's positive.  Shape `[num_items + 1]`, float64.
        eligible: Which training users can give a sample.  Shape `[T]`, bool.
        samples: How many (user, position) pairs can be a sample.
    """

    counts: np.ndarray
    probabilities: np.ndarray
    eligible: np.ndarray
    samples: int


def training_positives(
    items: ArrayReader | np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    *,
    num_items: int,
    min_history: int,
) -> TrainingPositives:
    """Compute the exact sampling distribution of the positives of training batches.

    A batch row is a user drawn uniformly from the eligible ones and a position k drawn uniformly
    from {m, …, L_u − 1}, where m is the minimum history, so that

        q(i) = 1/U · Σ_u #(positions k ≥ m of u that hold i) / (L_u − m).

    Args:
        items: All sequences end to end.  Shape `[n]`.
        starts: Where each user's training part starts, ascending.  Shape `[T]`.
        ends: Where it ends.  Shape `[T]`.
        num_items: Largest item id.
        min_history: m, how many items a training sample has before its target at least.
    """
    lengths = ends - starts
    eligible = lengths > min_history
    weights = 1.0 / np.maximum(lengths - min_history, 1)
    counts = np.zeros(num_items + 1, dtype=np.int64)
    total = np.zeros(num_items + 1, dtype=np.float64)
    for run in user_runs(offsets_of(lengths), CHUNK_ROWS):
        positions, _ = range_positions(starts[run], ends[run])
        owner = np.repeat(np.arange(run.start, run.stop), lengths[run])
        first = int(starts[run.start])
        held = items[first : int(ends[run.stop - 1])][positions - first]
        counts += np.bincount(held, minlength=num_items + 1)
        targets = (positions >= starts[owner] + min_history) & eligible[owner]
        total += np.bincount(held[targets], weights[owner[targets]], minlength=num_items + 1)
    samples = int((lengths[eligible] - min_history).sum())
    return TrainingPositives(counts, total / max(int(eligible.sum()), 1), eligible, samples)
