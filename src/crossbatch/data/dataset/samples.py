"""Which (user, position) pairs are training samples, and how likely each item is a target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from crossbatch.data.dataset.arrays import offsets_of, range_positions, user_runs

if TYPE_CHECKING:
    from crossbatch.data.dataset.arrays import ArrayReader

SAMPLE_BY = ("user", "interaction")
SUMMED_ROWS = 2_000_000  # another number would round the sampling law differently


@dataclass(frozen=True)
class Samples:
    """The pairs of a user and a target position that training draws from.

    By "user" it draws a user uniformly, then one of its targets uniformly; by "interaction" a pair
    uniformly.
    """

    users: np.ndarray  # [T] int64, those who have a sample, ascending
    starts: np.ndarray  # [T] int64, where each one's sequence starts in the log
    firsts: np.ndarray  # [T] int64, each one's first target; all items from there on are targets
    ends: np.ndarray  # [T] int64, where its training part ends
    sample_by: str = "user"

    @cached_property
    def offsets(self) -> np.ndarray:
        """Number of the first pair of each user, and of all pairs.  Shape `[T + 1]`, int64."""
        return offsets_of(self.ends - self.firsts)

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, ...]:
        """Return rows of `users` and positions of targets for (batches, rows), both flat.

        The users of a batch are distinct by user; by interaction pairs are independent of each
        other, and a user may have several in a batch.
        """
        if self.sample_by == "interaction":
            pairs = rng.integers(self.offsets[-1], size=shape).reshape(-1)
            rows = np.searchsorted(self.offsets, pairs, side="right") - 1
            return rows, self.firsts[rows] + pairs - self.offsets[rows]
        rows = rng.integers(len(self.users), size=shape)
        ordered = np.sort(rows, axis=1)
        # a batch with a repeated user is redrawn as a whole: distinct ones stay equally likely
        for batch in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
            rows[batch] = rng.choice(len(self.users), size=shape[1], replace=False)
        rows = rows.reshape(-1)
        return rows, rng.integers(self.firsts[rows], self.ends[rows])

    def law(self, items: ArrayReader | np.ndarray, num_items: int) -> np.ndarray:
        """Return the exact probability of each item to be a target.  `[num_items + 1]`, float64.

        With U users, of whom u has T_u targets,

            by user:         q(i) = 1/U · Σ_u #(targets of u that are i) / T_u
            by interaction:  q(i) = #(targets that are i) / Σ_u T_u
        """
        if self.sample_by == "interaction":
            weights, total = None, int(self.offsets[-1])
        else:
            weights, total = 1.0 / (self.ends - self.firsts), len(self.users)
        return item_totals(items, self.firsts, self.ends, num_items, weights) / total


def item_totals(
    items: ArrayReader | np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    num_items: int,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Count each item in the ranges `start:end` of a log; row 0 is padding.  `[num_items + 1]`.

    With `weights` `[n]`, an occurrence counts as much as its range's weight.  Ranges ascend; the
    log is read in pieces.
    """
    totals = np.zeros(num_items + 1, dtype=np.int64 if weights is None else np.float64)
    for run in user_runs(np.append(starts, ends[-1]) - starts[0], SUMMED_ROWS):
        positions, offsets = range_positions(starts[run], ends[run])
        first, last = int(starts[run.start]), int(ends[run.stop - 1])
        held = items[first:last][positions - first]
        weight = None if weights is None else np.repeat(weights[run], np.diff(offsets))
        totals += np.bincount(held, weight, minlength=num_items + 1)
    return totals
