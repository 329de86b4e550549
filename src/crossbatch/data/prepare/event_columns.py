"""What a log says of each interaction beside user, item and time: weight, session, context.

An `EventColumn` turns a column of the source into numbers that are staged and sorted with the
interaction, and writes the sorted numbers to arrays of the dataset.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import ArrayWriter, SumWriter
from crossbatch.data.dataset.encoders import clean_text
from crossbatch.data.prepare.rest import FOLDER
from crossbatch.errors import DataError
from crossbatch.files import read_document, write_document

MINUTE = 60 * 1_000_000  # microseconds
FINE = 1_000_000  # weights that are no whole numbers are kept in millionths
STATE = f"{FOLDER}/weight.json"
MOST_TOTAL = 2.0**62  # of an int64 sum
SEPARATOR = "|"  # of a column of lists as plain strings
Append = Callable[[np.ndarray], None]
"""`append(rows)`: write the next sorted interactions, those of whole users."""


class Carried(NamedTuple):
    """The values that an event column needs of each interaction; a cluster's workers read them."""

    name: str  # of the source's column
    kind: str  # "weight", "number", "text", "key" or "list"
    separator: str = ""  # of the parts of a list, for "text"

    def values(self, frame: pl.DataFrame) -> tuple[pl.Series, list[float]]:
        """Return the values of usable rows, and what is to be learned of them."""
        column = frame[self.name]
        if self.kind == "weight":  # whether they are whole numbers, and their sum
            weights = column.to_numpy()
            return column, [float((weights == np.rint(weights)).all()), float(weights.sum())]
        if self.kind == "number":
            return _numbers(column)
        if self.kind == "list":
            lists = column
            if column.dtype != pl.List:
                lists = column.cast(pl.String).str.split(SEPARATOR)
            return lists.cast(pl.List(pl.String)).fill_null([]), []
        if self.kind == "text":
            if column.dtype == pl.List:
                column = column.cast(pl.List(pl.String)).list.join(self.separator)
            return clean_text(column), []
        return column.cast(pl.String), []


def _numbers(given: pl.Series) -> tuple[pl.Series, list[float]]:
    """Return numbers, NaN where there is none, and a summary.

    That is how many there are, their mean, the sum of their squared distances from it, and how many
    values are no numbers.
    """
    cast = given.cast(pl.Float64, strict=False)
    numbers = np.array(cast.to_numpy(), dtype=np.float64)
    numbers[~(np.abs(numbers) < np.finfo(np.float32).max)] = np.nan
    known = numbers[np.isfinite(numbers)]
    mean, squares = (known.mean(), known.var() * len(known)) if len(known) else (0.0, 0.0)
    unreadable = cast.null_count() - given.null_count()
    return pl.Series(numbers), [float(len(known)), float(mean), float(squares), float(unreadable)]


class EventColumn:
    """A column of the log that the dataset keeps for every interaction.

    Attributes:
        name: Of the field among sorted rows.
        carried: The values that are read of the log; None if none are.
        dtype: Of the numbers that are staged and sorted in their place.
    """

    name: str
    carried: Carried | None = None
    dtype: Any = None

    def staged(self, frame: pl.DataFrame) -> np.ndarray:
        """Learn of usable rows of the log, and return their numbers.  `[n]`, `dtype`."""
        assert self.carried is not None
        values, summary = self.carried.values(frame)
        self.learn(summary)
        return self.numbers(values)

    def learn(self, summary: list[float]) -> None:
        """Take account of the values of a frame by what `Carried.values` says of them."""

    def numbers(self, values: pl.Series) -> np.ndarray:
        """Return what is staged of values, and learn nothing of them.  `[n]`, `dtype`."""
        return values.to_numpy()

    def match(self, item_keys: pl.Series) -> None:
        """Learn the ids of items: `item_keys` are the keys of the items 1, 2 …."""

    def keep(self, dataset: Path) -> None:
        """Write what further days need to know, beside the staged numbers, to its `rest`."""

    def resume(self, dataset: Path) -> None:
        """Continue from what `keep` wrote, before anything is staged."""

    def writer(self, folder: Path, total: int) -> AbstractContextManager[Append]:
        """Open the arrays of a dataset folder for `total` interactions."""
        raise NotImplementedError


class WeightColumn(EventColumn):
    """Weights, as `weight_offsets.npy`: whole numbers that add up, so that draws are exact."""

    name, dtype, carried = "weight", np.float64, Carried("weight", "weight")

    def __init__(self) -> None:
        self._whole, self._total = True, 0.0

    def learn(self, summary: list[float]) -> None:
        """Learn whether all are whole numbers, and their sum."""
        self._whole &= bool(summary[0])
        self._total += summary[1]

    def keep(self, dataset: Path) -> None:
        """Write what was learned."""
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


class SessionColumn(EventColumn):
    """Sessions, as `session_places.npy`: how many events of its session came before each one.

    A session ends where the next event of the user is of another one, or comes after a pause of
    more than `gap` minutes. What is staged is a hash of the session's id, which tells a user's
    sessions apart; only a log with a column of sessions has it.
    """

    name = "session"

    def __init__(self, *, named: bool, gap: float | None, growing: bool) -> None:
        self._gap, self._growing = gap, growing  # growing: whether days may be added later
        if named:
            self.carried, self.dtype = Carried("session", "key"), np.uint32

    def numbers(self, values: pl.Series) -> np.ndarray:
        """Return a hash of each row's session.  `[n]`, uint32."""
        sessions = values.fill_null("")
        if not self._growing:  # that of polars is faster, and may change between versions
            return (sessions.hash(seed=0).to_numpy() >> np.uint64(32)).astype(np.uint32)
        # CRC-32 never changes, for a day that is added later must give the same; that two sessions
        # of a user, one after the other, share it, happens once in 4 billion
        distinct = sessions.unique()
        hashes = [zlib.crc32(session.encode()) for session in distinct.to_list()]
        return sessions.replace_strict(
            distinct, pl.Series(hashes, dtype=pl.UInt32), return_dtype=pl.UInt32
        ).to_numpy()

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return the place of sorted interactions in their sessions, from 0.  `[n]`, int64."""
        begins = np.ones(len(rows), dtype=bool)
        begins[1:] = rows["user"][1:] != rows["user"][:-1]
        if self.carried is not None:
            begins[1:] |= rows["session"][1:] != rows["session"][:-1]
        if self._gap is not None:
            begins[1:] |= np.diff(rows["time"]) > self._gap * MINUTE
        numbers = np.arange(len(rows))
        return numbers - np.maximum.accumulate(np.where(begins, numbers, 0))

    @contextmanager
    def writer(self, folder: Path, total: int) -> Iterator[Append]:
        """Write `[total]` places, int32."""
        with ArrayWriter(folder / "session_places.npy", np.int32, total) as array:
            yield lambda rows: array.append(self.places(rows))
