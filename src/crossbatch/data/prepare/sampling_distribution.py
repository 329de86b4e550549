"""The law by which items enter a batch, exactly, and the raw frequencies."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from crossbatch.data.dataset.arrays import ArrayReader

CHUNK_ROWS = 2_000_000  # interactions that are weighed at once


class ItemLaw(NamedTuple):
    """What training shows of each item; row 0 is padding.

    Attributes:
        counts: Interactions in the training part.  Shape `[num_items + 1]`, int64.
        law: Probability to be a batch row's positive.  Shape `[num_items + 1]`, float64, sum 1.
        eligible: Which training users can give a sample.  Shape `[T]`, bool.
        samples: How many (user, position) pairs can be a sample.
    """

    counts: np.ndarray
    law: np.ndarray
    eligible: np.ndarray
    samples: int


def item_law(
    items: ArrayReader | np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    *,
    num_items: int,
    min_history: int,
) -> ItemLaw:
    """Compute the exact law of an in-batch positive.

    A batch row is a user drawn uniformly from the eligible ones and a position k drawn uniformly
    from {m, …, L_u − 1}, m being the least history, so that

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
    counts = np.zeros(num_items + 1, dtype=np.int64)
    law = np.zeros(num_items + 1, dtype=np.float64)
    for users in _chunks(lengths):
        positions, owner = _spans(starts[users], ends[users])
        first = int(starts[users][0])
        held = items[first : int(ends[users][-1])][positions - first]
        counts += np.bincount(held, minlength=num_items + 1)
        can = eligible[users]
        targets = (positions >= starts[users][owner] + min_history) & can[owner]
        weights = 1.0 / np.maximum(lengths[users] - min_history, 1)
        law += np.bincount(held[targets], weights[owner[targets]], minlength=num_items + 1)
    samples = int((lengths[eligible] - min_history).sum())
    return ItemLaw(counts, law / max(int(eligible.sum()), 1), eligible, samples)


def _chunks(lengths: np.ndarray) -> list[slice]:
    """Cut the users into runs of about `CHUNK_ROWS` interactions."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    inner = np.searchsorted(ends, np.arange(CHUNK_ROWS, total, CHUNK_ROWS))
    bounds = np.unique(np.concatenate([[0], inner, [len(lengths)]])).tolist()
    return [slice(first, last) for first, last in pairwise(bounds)]


def _spans(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return every position of the given ranges, and the number of the range it is in."""
    lengths = ends - starts
    owner = np.repeat(np.arange(len(starts)), lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(len(owner)) - before[owner] + starts[owner], owner
