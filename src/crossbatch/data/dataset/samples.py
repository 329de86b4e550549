"""The interactions of users as arrays, and which of them are training samples.

`Events` are those of a whole dataset or of one of its shards, `Samples` the pairs of a user and a
target that are drawn from them, and `Samples.law` says how likely each item is a target.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from crossbatch.data.dataset.arrays import (
    ArrayReader,
    map_array,
    offsets_of,
    range_positions,
    range_runs,
    take,
    user_runs,
)
from crossbatch.errors import ConfigError, check_choice

SAMPLE_BY = ("user", "interaction")
SUMMED_ROWS = 2_000_000  # another number would round the sampling law differently
CHUNK_ROWS = 1 << 20  # interactions whose times are read at once
MOST_DAYS = 1e6  # the age of a log
DAY = 86_400 * 1_000_000  # microseconds


@dataclass(frozen=True)
class Samples:
    """The pairs of a user and a target position that training draws from.

    By "user" it draws a user uniformly, then one of its targets in proportion to their weights; by
    "interaction" a pair in proportion to its weight. Without weights all count the same.
    """

    users: np.ndarray  # [T] int64, those who have a sample, ascending
    starts: np.ndarray  # [T] int64, where each one's sequence starts in the log
    firsts: np.ndarray  # [T] int64, each one's first target; all items from there on are targets
    ends: np.ndarray  # [T] int64, where its training part ends
    sample_by: str = "user"
    # [n + 1] int64, weights of all interactions before each one of the log, and of all
    weight_offsets: ArrayReader | np.ndarray | None = None

    @cached_property
    def totals(self) -> np.ndarray:
        """Weight of each user's targets, their number without weights.  Shape `[T]`, int64."""
        first, last = self.firsts, self.ends
        if self.weight_offsets is not None:
            first, last = (take(self.weight_offsets, each) for each in (first, last))
        totals: np.ndarray = last - first
        return totals

    @cached_property
    def offsets(self) -> np.ndarray:
        """Weight of the pairs before those of each user, and of all.  Shape `[T + 1]`, int64."""
        return offsets_of(self.totals)

    def with_targets(self) -> Samples:
        """The same without users whose targets all have weight 0."""
        able = self.totals > 0
        if able.all():
            return self
        names = ("users", "starts", "firsts", "ends")
        return replace(self, **{name: getattr(self, name)[able] for name in names})

    def count(self) -> int:
        """Return how many pairs there are whose weight is not 0."""
        if self.weight_offsets is None:
            return int(self.totals.sum())
        return int(target_counts(self.weight_offsets, self.firsts, self.ends).sum())

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, ...]:
        """Return rows of `users` and positions of targets for (batches, rows), both flat.

        The users of a batch are distinct by user; by interaction pairs are independent of each
        other, and a user may have several in a batch.
        """
        if self.sample_by == "interaction":
            pairs = rng.integers(self.offsets[-1], size=shape).reshape(-1)
            rows = np.searchsorted(self.offsets, pairs, side="right") - 1
            return rows, self._position(rows, pairs - self.offsets[rows])
        rows = rng.integers(len(self.users), size=shape)
        ordered = np.sort(rows, axis=1)
        # a batch with a repeated user is redrawn as a whole: distinct ones stay equally likely
        for batch in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
            rows[batch] = rng.choice(len(self.users), size=shape[1], replace=False)
        rows = rows.reshape(-1)
        return rows, self._position(rows, rng.integers(self.totals[rows]))

    def _position(self, rows: np.ndarray, within: np.ndarray) -> np.ndarray:
        """Return the target at a weight `within` `[n]` those of a user, by bisection."""
        low: np.ndarray = self.firsts[rows]
        sums = self.weight_offsets
        if not isinstance(sums, np.ndarray):
            return np.asarray(low + within)
        high = self.ends[rows] - 1
        wanted = sums[low] + within
        while (low < high).any():
            middle = (low + high) // 2
            after = sums[middle + 1] <= wanted
            low, high = np.where(after, middle + 1, low), np.where(after, high, middle)
        return low

    def law(self, items: ArrayReader | np.ndarray, num_items: int) -> np.ndarray:
        """Return the exact probability of each item to be a target.  `[num_items + 1]`, float64.

        With U users, of whom u has targets t of items i_t and weights w_t, W_u in all,

            by user:         q(i) = 1/U · Σ_u Σ_{t: i_t = i} w_t / W_u
            by interaction:  q(i) = Σ_u Σ_{t: i_t = i} w_t / Σ_u W_u
        """
        return self.item_weights(items, num_items) / self.total_weight

    @property
    def total_weight(self) -> int:
        """What `item_weights` add up to: U, or Σ W_u of `law`."""
        return int(self.offsets[-1]) if self.sample_by == "interaction" else len(self.users)

    def item_weights(self, items: ArrayReader | np.ndarray, num_items: int) -> np.ndarray:
        """Return the sums of `law` before they are divided.  `[num_items + 1]`."""
        weights = None if self.sample_by == "interaction" else 1.0 / self.totals
        sums = self.weight_offsets
        return item_totals(items, self.firsts, self.ends, num_items, weights, sums)


def item_totals(
    items: ArrayReader | np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    num_items: int,
    weights: np.ndarray | None = None,
    weight_offsets: ArrayReader | np.ndarray | None = None,
) -> np.ndarray:
    """Count each item in the ranges `start:end` of a log; row 0 is padding.  `[num_items + 1]`.

    With `weights` `[n]`, an occurrence counts as much as its range's weight, with `weight_offsets`
    as much as its own (see `Samples`), with both their product.  Ranges ascend; the log is read in
    pieces.
    """
    counts = weights is None and weight_offsets is None
    totals = np.zeros(num_items + 1, dtype=np.int64 if counts else np.float64)
    for run, first, last in range_runs(starts, ends, SUMMED_ROWS):
        positions, offsets = range_positions(starts[run], ends[run])
        held = items[first:last][positions - first]
        weight = None if weights is None else np.repeat(weights[run], np.diff(offsets))
        if weight_offsets is not None:
            own = np.diff(weight_offsets[first : last + 1])[positions - first]
            weight = own if weight is None else own * weight
        totals += np.bincount(held, weight, minlength=num_items + 1)
    return totals


def target_counts(
    weight_offsets: ArrayReader | np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Count the interactions with a weight above 0 in ascending ranges `start:end`.  `[n]`."""
    counts = np.zeros(len(starts), dtype=np.int64)
    for run, first, last in range_runs(starts, ends, SUMMED_ROWS):
        before = offsets_of(np.diff(weight_offsets[first : last + 1]) > 0)
        counts[run] = before[ends[run] - first] - before[starts[run] - first]
    return counts


@dataclass(frozen=True, slots=True)
class Events:
    """Sequences end to end, and what is known of each interaction."""

    offsets: np.ndarray  # [num_users + 1] int64, where each user's sequence begins
    items: np.ndarray  # [n] int32
    times: np.ndarray  # [n] int64, microseconds
    # [n + 1] int64, weight of all interactions before each one; None where all count the same
    weight_offsets: np.ndarray | None
    # [n] int32, how many events of its session came before each one; None without sessions
    session_places: np.ndarray | None
    # items shown with each interaction, int32, and where those of each begin, int64 [n + 1]
    shown: tuple[np.ndarray, np.ndarray] | None


def read_events(folder: Path, files: Container[str]) -> Events:
    """Map the arrays of a folder into memory; `files` says which of the optional ones there are."""

    def load(name: str) -> np.ndarray:
        return map_array(folder / f"{name}.npy")

    def load_if_there(name: str) -> np.ndarray | None:
        return load(name) if f"{name}.npy" in files else None

    shown = "shown_items.npy" in files and "shown_offsets.npy" in files
    return Events(
        offsets=load("offsets"),
        items=load("items"),
        times=load("times"),
        weight_offsets=load_if_there("weight_offsets"),
        session_places=load_if_there("session_places"),
        shown=(load("shown_items"), load("shown_offsets")) if shown else None,
    )


class Draw(NamedTuple):
    """Which samples are drawn, and how: options of `Dataset.batches`."""

    min_history: int = 1
    sample_by: str = "user"
    newest_days: float = 0.0

    def check(self) -> None:
        """Raise `ConfigError` for options that no dataset can serve."""
        if self.min_history < 1:
            raise ConfigError(f"min_history must be at least 1, got {self.min_history}")
        check_choice("sample_by", self.sample_by, SAMPLE_BY)
        if not 0 <= self.newest_days < MOST_DAYS:
            raise ConfigError(f"newest_days must be 0 or a number of days, got {self.newest_days}")


class Training(NamedTuple):
    """The training parts of sequences."""

    events: Events
    users: np.ndarray  # [T] int64, ids of users with two training items or more, ascending
    rows: np.ndarray  # [T] int64, their rows in the offsets of the events
    ends: np.ndarray  # [T] int64, where the training part of each ends

    @property
    def starts(self) -> np.ndarray:
        """Where the sequence of each user starts.  Shape `[T]`, int64."""
        return np.asarray(self.events.offsets[self.rows])

    def samples(self, draw: Draw, last_time: int) -> Samples:
        """Return the samples, which may be none; `last_time` is that of all training parts.

        Users whose targets all have weight 0 are among them; see `Samples.with_targets`.
        """
        starts, ends = self.starts, self.ends
        firsts = starts + draw.min_history
        if draw.newest_days:
            newest = last_time - round(draw.newest_days * DAY)
            earlier = before(self.events.offsets, self.events.times, newest + 1)
            firsts = np.maximum(firsts, earlier[self.rows])
        eligible = firsts < ends
        kept = slice(None) if eligible.all() else eligible  # no copies where all are
        arrays = (self.users[kept], starts[kept], firsts[kept], ends[kept])
        return Samples(*arrays, draw.sample_by, self.events.weight_offsets)


def before(offsets: np.ndarray, times: ArrayReader | np.ndarray, moment: int) -> np.ndarray:
    """Return the end of each user's interactions before a moment.  Shape `[num_users]`."""
    ends = offsets[:-1].copy()
    for run in user_runs(offsets, CHUNK_ROWS):
        start, end = int(offsets[run.start]), int(offsets[run.stop])
        earlier = offsets_of(times[start:end] < moment)
        ends[run] += np.diff(earlier[offsets[run.start : run.stop + 1] - start])
    return ends


def no_samples(draw: Draw, longest: int, *, weightless: bool) -> ConfigError:
    """Return the error of a dataset without samples; `weightless` if all targets have weight 0."""
    if weightless:
        return ConfigError(
            f"no target with min_history = {draw.min_history} items before it has a weight "
            "above 0: lower it"
        )
    if draw.newest_days:
        return ConfigError(
            f"no item of the last newest_days = {draw.newest_days:g} days of training has "
            f"min_history = {draw.min_history} items before it: use more days, or 0 for all"
        )
    return ConfigError(
        f"no training user has more than min_history = {draw.min_history} items, but at "
        f"most {longest}: lower it"
    )
