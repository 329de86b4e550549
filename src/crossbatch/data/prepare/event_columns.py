"""What a log says of each interaction beside user, item and time: weight, session, context.

An `EventColumn` turns a column of the source into numbers that are staged and sorted with the
interaction, and writes the sorted numbers to arrays of the dataset.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import ArrayWriter, SumWriter
from crossbatch.data.prepare.context_columns import context_columns
from crossbatch.data.prepare.impressions import ImpressionColumn
from crossbatch.data.prepare.rest import FOLDER
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.readers.source import Source

MINUTE = 60 * 1_000_000  # microseconds
FINE = 1_000_000  # weights that are no whole numbers are kept in millionths
STATE = f"{FOLDER}/weight.json"
MOST_TOTAL = 2.0**62  # of an int64 sum
Append = Callable[[np.ndarray], None]
"""`append(rows)`: write the next sorted interactions, those of whole users."""


class EventColumn(Protocol):
    """A column of the log that the dataset keeps for every interaction."""

    @property
    def name(self) -> str:
        """Of the field among sorted rows."""

    @property
    def dtype(self) -> Any:
        """Of what is staged; None if nothing is."""

    def staged(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the numbers of usable rows of the log.  `[n]`, `dtype`."""

    def keep(self, dataset: Path) -> None:
        """Write what further days need to know, beside the staged numbers, to its `rest`."""

    def resume(self, dataset: Path) -> None:
        """Continue from what `keep` wrote, before anything is staged."""

    def writer(self, folder: Path, total: int) -> AbstractContextManager[Append]:
        """Open the arrays of a dataset folder for `total` interactions."""


def weight_summary(weights: np.ndarray) -> list[float]:
    """Return whether weights are whole numbers, and their sum."""
    return [float((weights == np.rint(weights)).all()), float(weights.sum())]


class WeightColumn:
    """Weights, as `weight_offsets.npy`: whole numbers that add up, so that draws are exact."""

    name, dtype = "weight", np.float64

    def __init__(self) -> None:
        self._whole, self._total = True, 0.0

    def staged(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the weights of usable rows.  `[n]`, float64."""
        weights = self.numbers(frame)
        self.learn(weight_summary(weights))
        return weights

    def numbers(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the weights of rows, and learn nothing of them.  `[n]`, float64."""
        return frame["weight"].to_numpy()

    def learn(self, summary: list[float]) -> None:
        """Take account of weights by their `weight_summary`."""
        self._whole &= bool(summary[0])
        self._total += summary[1]

    def keep(self, dataset: Path) -> None:
        """Write whether all weights are whole numbers, and their sum."""
        write_document(dataset / STATE, {"whole": self._whole, "total": self._total})

    def resume(self, dataset: Path) -> None:
        """Read what was kept."""
        kept = read_document(dataset / STATE, "prepare the dataset again")
        try:
            self._whole, self._total = bool(kept["whole"]), float(kept["total"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{dataset / STATE} is broken ({error}): prepare it again") from None

    @contextmanager
    def writer(self, folder: Path, total: int) -> Iterator[Append]:
        """Write `[total + 1]` sums of the weights before each interaction, and of all.  int64."""
        unit = 1 if self._whole else FINE
        if self._total * unit > MOST_TOTAL:
            raise DataError(f"the weights add up to {self._total:g}: divide them by a large number")
        with SumWriter(folder / "weight_offsets.npy", total) as sums:

            def append(rows: np.ndarray) -> None:
                units = np.rint(rows["weight"] * unit)
                units[(units == 0) & (rows["weight"] > 0)] = 1  # not history alone
                sums.append(units.astype(np.int64))

            yield append


@dataclass(frozen=True, slots=True)
class SessionColumn:
    """Sessions, as `session_places.npy`: how many events of its session came before each one.

    A session ends where the next event of the user is of another one, or comes after a pause of
    more than `gap` minutes.
    """

    named: bool  # whether the log has a column of sessions
    gap: float | None = None
    growing: bool = False  # whether days may be added later
    name: str = "session"

    @property
    def dtype(self) -> Any:
        """Of what is staged: a hash of the session's id, which tells a user's sessions apart."""
        return np.uint32 if self.named else None

    def staged(self, frame: pl.DataFrame) -> np.ndarray:
        """Return a hash of each row's session.  `[n]`, uint32."""
        sessions = frame["session"].cast(pl.String).fill_null("")
        if not self.growing:  # that of polars is faster, and may change between versions
            return (sessions.hash(seed=0).to_numpy() >> np.uint64(32)).astype(np.uint32)
        # CRC-32 never changes, for a day that is added later must give the same; that two sessions
        # of a user, one after the other, share it, happens once in 4 billion
        distinct = sessions.unique()
        hashes = [zlib.crc32(session.encode()) for session in distinct.to_list()]
        return sessions.replace_strict(
            distinct, pl.Series(hashes, dtype=pl.UInt32), return_dtype=pl.UInt32
        ).to_numpy()

    def keep(self, dataset: Path) -> None:
        """Write nothing: the hashes of the interactions are kept."""

    def resume(self, dataset: Path) -> None:
        """Read nothing."""

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return the place of sorted interactions in their sessions, from 0.  `[n]`, int64."""
        begins = np.ones(len(rows), dtype=bool)
        begins[1:] = rows["user"][1:] != rows["user"][:-1]
        if self.named:
            begins[1:] |= rows["session"][1:] != rows["session"][:-1]
        if self.gap is not None:
            begins[1:] |= np.diff(rows["time"]) > self.gap * MINUTE
        numbers = np.arange(len(rows))
        return numbers - np.maximum.accumulate(np.where(begins, numbers, 0))

    @contextmanager
    def writer(self, folder: Path, total: int) -> Iterator[Append]:
        """Write `[total]` places, int32."""
        with ArrayWriter(folder / "session_places.npy", np.int32, total) as array:
            yield lambda rows: array.append(self.places(rows))


def event_columns(
    source: Source, options: PrepareOptions, staging: Path
) -> tuple[EventColumn, ...]:
    """Return what the dataset keeps of each interaction of a source; `staging` is for its files.

    Raises:
        ConfigError: If kinds of events have no weights, or weights no kinds.
    """
    if "event" in source.event_columns and options.event_weights is None:
        raise ConfigError(
            "the kinds of events need weights: name them with --event-weights, such as "
            "view=0,click=1,buy=5 (0: only in histories; kinds not named are left out)"
        )
    if options.event_weights is not None and "event" not in source.event_columns:
        raise ConfigError("event_weights need the column of events: name it with --event")
    columns: list[EventColumn] = []
    if {"event", "weight"} & set(source.event_columns):
        columns.append(WeightColumn())
    sessions = None
    if "session" in source.event_columns or options.session_gap is not None:
        named = "session" in source.event_columns
        sessions = SessionColumn(named, options.session_gap, options.growing)
        columns.append(sessions)
    if "impressions" in source.event_columns:
        columns.append(ImpressionColumn(staging))
    elif source.shown is not None:
        columns.append(ImpressionColumn(staging, source.shown))
    columns += context_columns(source.context, source.clock, sessions)
    return tuple(columns)


def match_items(columns: Iterable[EventColumn], item_keys: pl.Series) -> None:
    """Tell the columns that hold items which ids they have: keys of the items 1, 2 …."""
    for column in columns:
        if isinstance(column, ImpressionColumn):
            column.match(item_keys)


def described_columns(source: Source, options: PrepareOptions) -> dict[str, Any]:
    """Return what a source says of its events, as plain values; further days must say the same."""
    listed = ("event", "weight", "session", "impressions")
    columns: dict[str, Any] = {name: name in source.event_columns for name in listed}
    columns["impressions"] |= source.shown is not None
    columns["session_gap"] = options.session_gap
    columns["context"] = {column.name: column.kind for column in source.context}
    columns["clock"] = list(source.clock)
    return {name: value for name, value in columns.items() if value}
