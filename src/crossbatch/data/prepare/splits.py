"""How sequences are divided into training, validation and test parts.

Every split comes to the same few arrays, so the dataset has one code path:

- training: the rows of the users, and where the training part of each ends;
- validation, test: rows of the users, where the history ends (= the first target), where the
  targets end.  The history is everything of that user before the first target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossbatch.data.dataset.arrays import pieces, user_runs
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.data.dataset.arrays import ArrayReader

CHUNK_ROWS = 1 << 20  # interactions that are read at once
BINS = 1 << 16


@dataclass(frozen=True, slots=True)
class Sequences:
    """All users' interactions, chronological: `items[offsets[u]:offsets[u + 1]]`."""

    offsets: np.ndarray  # [num_users + 1] int64
    times: ArrayReader | np.ndarray  # [offsets[-1]] int64, microseconds; read in slices
    bounds: tuple[int, int]  # where the valid and the test users begin, for a split by users

    @property
    def lengths(self) -> np.ndarray:
        """Shape `[num_users]`, int64."""
        return np.diff(self.offsets)


class Part(NamedTuple):
    """The evaluation samples of a split.  Shapes `[E]`, int64."""

    users: np.ndarray
    cuts: np.ndarray  # absolute position of the first target
    ends: np.ndarray  # absolute position after the last target

    def where(self, chosen: np.ndarray) -> Part:
        """Return the chosen samples.  Shape `[E]`, bool."""
        return Part(self.users[chosen], self.cuts[chosen], self.ends[chosen])


@dataclass(frozen=True, slots=True)
class Split:
    """Training users with the ends of their training part, and the two evaluation parts."""

    train_users: np.ndarray  # [T] int64
    train_ends: np.ndarray  # [T] int64, absolute
    valid: Part
    test: Part


def by_user(sequences: Sequences, fractions: tuple[float, float]) -> Split:
    """Divide the users; of an evaluation user the last fifth are targets.

    The history is the first ⌊0.8 L⌋ interactions; users with fewer than two are left out.
    """
    users = np.arange(len(sequences.offsets) - 1)
    train, valid, test = np.split(users, sequences.bounds)
    parts = (_last_fifth(sequences, part) for part in (valid, test))
    return Split(train, sequences.offsets[train + 1], *parts)


def leave_last_out(sequences: Sequences, fractions: tuple[float, float]) -> Split:
    """Test on every user's last interaction, validate on the one before, train on the rest.

    The test history includes the validation target.  A user of two interactions has a test sample
    only; a user of one has none and is trained on nothing.
    """
    offsets, lengths = sequences.offsets, sequences.lengths
    users = np.arange(len(lengths))
    ends = offsets[1:]
    return Split(
        train_users=users,
        train_ends=np.maximum(ends - 2, offsets[:-1]),
        valid=Part(users, ends - 2, ends - 1).where(lengths >= 3),
        test=Part(users, ends - 1, ends).where(lengths >= 2),
    )


def by_time(sequences: Sequences, fractions: tuple[float, float]) -> Split:
    """Train before one moment, validate between two, test after the second, for all users alike.

    The two moments leave `fractions` of all interactions to the later parts, or a little less, for
    interactions of one moment stay together.  A user is evaluated in a window if there is a history
    before it; targets are all interactions in the window, and the history ends where it begins.
    """
    moments = (
        _moment(sequences.times, fractions[0] + fractions[1]),
        _moment(sequences.times, fractions[1]),
    )
    first, second = (_before(sequences, moment) for moment in moments)
    starts, ends = sequences.offsets[:-1], sequences.offsets[1:]
    users = np.arange(len(starts))
    return Split(
        train_users=users,
        train_ends=first,
        valid=Part(users, first, second).where((first > starts) & (second > first)),
        test=Part(users, second, ends).where((second > starts) & (ends > second)),
    )


SPLITS: dict[str, Callable[[Sequences, tuple[float, float]], Split]] = {
    "user": by_user,
    "leave_last_out": leave_last_out,
    "time": by_time,
}


def user_bounds(num_users: int, fractions: tuple[float, float]) -> tuple[int, int]:
    """Return where the valid and the test users begin, as ComiRec: ⌊0.8 U⌋ and ⌊0.9 U⌋."""
    valid, test = fractions
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise ConfigError(
            f"valid and test shares must be ≥ 0 and below 1 together, got {valid} and {test}"
        )
    # rounding to 9 digits: 1 − 0.1 − 0.1 is not 0.8 in binary
    return int(round(1 - valid - test, 9) * num_users), int(round(1 - test, 9) * num_users)


def _last_fifth(sequences: Sequences, users: np.ndarray) -> Part:
    starts, lengths = sequences.offsets[users], sequences.lengths[users]
    cuts = starts + 4 * lengths // 5
    return Part(users, cuts, starts + lengths).where(lengths >= 2)


def _moment(times: ArrayReader | np.ndarray, share: float) -> int:
    """Return the moment that leaves `share` of all interactions at or after it.

    A histogram of the span that must hold it, then of the bin that must, and so on: a sort would
    hold the whole log in memory.
    """
    most = round(share * len(times))
    ends = [(int(piece.min()), int(piece.max())) for piece in pieces(times, CHUNK_ROWS)]
    # all are at or after low, none at or after high
    low, high = min(first for first, _ in ends), max(last for _, last in ends) + 1
    later = 0  # at or after high
    while high - low > 1:
        width = -(-(high - low) // BINS)
        counts = np.zeros(BINS, dtype=np.int64)
        for piece in pieces(times, CHUNK_ROWS):
            inside = piece[(piece >= low) & (piece < high)]
            counts += np.bincount((inside - low) // width, minlength=BINS)
        since = later + np.append(np.cumsum(counts[::-1])[::-1], 0)  # at or after a bin's beginning
        number = max(int(np.searchsorted(-since, -most)) - 1, 0)  # the last that leaves too many
        later = int(since[number + 1])
        low, high = low + number * width, min(low + (number + 1) * width, high)
    return high


def _before(sequences: Sequences, moment: int) -> np.ndarray:
    """Return the end of each user's interactions before a moment.  Shape `[num_users]`."""
    offsets = sequences.offsets
    before = offsets[:-1].copy()
    for run in user_runs(offsets, CHUNK_ROWS):
        start, end = int(offsets[run.start]), int(offsets[run.stop])
        earlier = np.concatenate([[0], np.cumsum(sequences.times[start:end] < moment)])
        before[run] += np.diff(earlier[offsets[run.start : run.stop + 1] - start])
    return before
