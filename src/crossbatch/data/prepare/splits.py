"""How sequences are divided into training, validation and test parts.

Every split comes to the same few arrays, so the dataset has one code path:

- training: the rows of the users, and where the training part of each ends;
- validation, test: rows of the users, where the history ends (= the first target), where the
  targets end.  The history is everything of that user before the first target.

Of a log with weights, interactions of weight 0 are part of histories and no targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossbatch.data.dataset.arrays import ArrayReader, pieces, user_runs
from crossbatch.data.dataset.samples import DAY, before
from crossbatch.data.prepare.sequences import mix
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.data.prepare.options import PrepareOptions

CHUNK_ROWS = 1 << 20  # interactions that are read at once
BINS = 1 << 16


@dataclass(frozen=True, slots=True)
class Sequences:
    """All users' interactions, chronological: `items[offsets[u]:offsets[u + 1]]`."""

    offsets: np.ndarray  # [num_users + 1] int64
    times: ArrayReader | np.ndarray  # [offsets[-1]] int64, microseconds; read in slices
    bounds: tuple[int, int]  # where the valid and the test users begin, for a split by users
    weight_offsets: ArrayReader | np.ndarray | None = None  # see `Samples`

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


def by_user(sequences: Sequences, options: PrepareOptions) -> Split:
    """Divide the users; of an evaluation user the last fifth are targets.

    The history is the first ⌊0.8 L⌋ interactions; users with fewer than two are left out.
    """
    users = np.arange(len(sequences.offsets) - 1)
    train, valid, test = np.split(users, sequences.bounds)
    parts = (_last_fifth(sequences, part) for part in (valid, test))
    return Split(train, sequences.offsets[train + 1], *parts)


def leave_last_out(sequences: Sequences, options: PrepareOptions) -> Split:
    """Test on every user's last interaction, validate on the one before, train on the rest.

    The test history includes the validation target.  A user of two interactions has a test sample
    only; a user of one has none and is trained on nothing.
    """
    starts = sequences.offsets[:-1]
    users = np.arange(len(starts))
    first, second = _last_targets(sequences)
    return Split(
        train_users=users,
        train_ends=np.maximum(first, starts),
        valid=Part(users, first, first + 1).where(first > starts),
        test=Part(users, second, second + 1).where(second > starts),
    )


def _last_targets(sequences: Sequences) -> tuple[np.ndarray, np.ndarray]:
    """Return the last target but one and the last of each user; before its start for none."""
    offsets, sums = sequences.offsets, sequences.weight_offsets
    if sums is None:
        return offsets[1:] - 2, offsets[1:] - 1
    found = np.repeat(offsets[:-1] - 1, 2).reshape(-1, 2)
    for run in user_runs(offsets, CHUNK_ROWS):
        starts, ends = offsets[run.start : run.stop], offsets[run.start + 1 : run.stop + 1]
        targets = starts[0] + np.flatnonzero(np.diff(sums[int(starts[0]) : int(ends[-1]) + 1]))
        count = np.searchsorted(targets, ends)
        for column, place in ((0, count - 2), (1, count - 1)):
            there = place >= np.searchsorted(targets, starts)
            found[run, column][there] = targets[place[there]]
    return found[:, 0], found[:, 1]


def by_time(sequences: Sequences, options: PrepareOptions) -> Split:
    """Train before one moment, validate between two, test after the second, for all users alike.

    The two moments leave the shares of all interactions to the later parts, or a little less, for
    interactions of one moment stay together.  A user is evaluated in a window if there is a history
    before it; targets are all interactions in the window, and the history ends where it begins.
    """
    moments = (
        _moment(sequences.times, options.valid_share + options.test_share),
        _moment(sequences.times, options.test_share),
    )
    first, second = (before(sequences.offsets, sequences.times, moment) for moment in moments)
    starts, ends = sequences.offsets[:-1], sequences.offsets[1:]
    users = np.arange(len(starts))
    return Split(
        train_users=users,
        train_ends=first,
        valid=Part(users, first, second).where((first > starts) & (second > first)),
        test=Part(users, second, ends).where((second > starts) & (ends > second)),
    )


def by_day(sequences: Sequences, options: PrepareOptions) -> Split:
    """Train on the days before one, test on that day; a day is one of UTC.

    The day of test is the last one of the log unless given; what came after it belongs to no part.
    Validation holds out the last day before it, of a share of its users, chosen anew every day; all
    others are trained up to the day of test.  A user is evaluated if there is a history before the
    day; targets are all interactions of the day.
    """
    newest = max(int(piece.max()) for piece in pieces(sequences.times, CHUNK_ROWS))
    test_day = newest // DAY * DAY if options.test_moment is None else options.test_moment
    earlier = (piece[piece < test_day] for piece in pieces(sequences.times, CHUNK_ROWS))
    last = max((int(piece.max()) for piece in earlier if len(piece)), default=test_day - 1)
    valid_day = last // DAY * DAY
    moments = (valid_day, test_day, test_day + DAY)
    first, second, third = (
        before(sequences.offsets, sequences.times, moment) for moment in moments
    )
    starts, users = sequences.offsets[:-1], np.arange(len(first))
    # the numbers of users are stable when days are appended, so the day takes part in the choice
    numbers = users + (valid_day // DAY << 32)
    held_out = mix(numbers, options.seed) < np.uint64(options.valid_share * 2.0**64)
    held_out &= (first > starts) & (second > first)
    return Split(
        train_users=users,
        train_ends=np.where(held_out, first, second),
        valid=Part(users, first, second).where(held_out),
        test=Part(users, second, third).where((second > starts) & (third > second)),
    )


SPLITS: dict[str, Callable[[Sequences, PrepareOptions], Split]] = {
    "user": by_user,
    "leave_last_out": leave_last_out,
    "time": by_time,
    "day": by_day,
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
