"""The interactions of users as arrays: those of a whole dataset, or of one of its shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossbatch.data.dataset.arrays import map_array
from crossbatch.data.dataset.samples import SAMPLE_BY, Samples
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

MOST_DAYS = 1e6  # the age of a log


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
        if self.sample_by not in SAMPLE_BY:
            raise ConfigError(
                f"sample_by must be one of {', '.join(SAMPLE_BY)}, got {self.sample_by!r}"
            )
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
            firsts = np.maximum(firsts, self._first_newer(draw.newest_days, last_time))
        eligible = firsts < ends
        kept = slice(None) if eligible.all() else eligible  # no copies where all are
        arrays = (self.users[kept], starts[kept], firsts[kept], ends[kept])
        return Samples(*arrays, draw.sample_by, self.events.weight_offsets)

    def _first_newer(self, days: float, last_time: int) -> np.ndarray:
        """Return each user's first interaction of the last `days` of training.  `[T]`."""
        from crossbatch.data.prepare.splits import DAY, Sequences, before

        newest = last_time - round(days * DAY)
        sequences = Sequences(self.events.offsets, self.events.times, (0, 0))
        return np.asarray(before(sequences, newest + 1)[self.rows])


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
