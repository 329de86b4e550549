"""Context of events (device, country, query …): features of the request that each one answered.

The arrays are those of any feature (see `Feature`), with a row for each interaction: row r is what
was known when interaction r was asked for. Built in are the hour and the day of the interaction,
the time since the last one of its user, and how many of its session came before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import ArrayWriter, SumWriter, map_array, range_positions
from crossbatch.data.dataset.encoders import Encoded, Encoder, fit
from crossbatch.data.dataset.features import SCHEMA, read_encoders, save_encoder, schema_entry
from crossbatch.data.dataset.string_table import StringTable, write_strings
from crossbatch.data.prepare.event_columns import Append, Carried, EventColumn, SessionColumn
from crossbatch.data.prepare.rest import FOLDER as REST
from crossbatch.data.prepare.staged_log import KeyCodes, counted
from crossbatch.data.readers.source import CLOCK, Column
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import write_document

FOLDER = "features/context"
HOUR = 3_600 * 1_000_000  # microseconds
# of log(1 + seconds): an hour is the middle, three deviations reach from a second to a year
SESSION_ITEMS = {"mean": 1.0, "std": 1.0, "log": True}  # of log(1 + items)
SINCE_LAST = {"mean": float(np.log1p(3600)), "std": 3.0, "log": True}


def context_columns(
    context: Sequence[Column], clock: Sequence[str], sessions: SessionColumn | None
) -> list[ContextColumn]:
    """Return what stages and writes the context of events."""
    columns: list[ContextColumn] = []
    for column in context:
        if column.kind not in COLUMNS:
            raise ConfigError(
                f"context {column.name!r} has kind {column.kind!r}: choose one of "
                f"{', '.join(COLUMNS)}"
            )
        columns.append(COLUMNS[column.kind](len(columns), column))
    for name in clock:
        if name not in CLOCK:
            raise ConfigError(f"context {name!r} is not built in: choose from {', '.join(CLOCK)}")
        if name == "session_items" and sessions is None:
            raise ConfigError("context session_items needs --session COLUMN or --session-gap")
        columns.append(ClockColumn(len(columns), Column(name, "categorical"), sessions))
    return columns


class ContextColumn(EventColumn):
    """A context column: its encoder and how many rows had a value are known once it is written."""

    kind = "text"  # of what is carried

    def __init__(self, number: int, column: Column) -> None:
        self.name, self.stem, self.column = f"context{number}", f"{number:02d}", column
        self.carried = Carried(f"context.{column.name}", self.kind, column.separator)
        self.encoder = Encoder("categorical", {})
        self.earlier: Encoder | None = None  # of the days before: its numbers keep their meaning
        self.num_values = self.present = self.rows = 0

    def resume(self, dataset: Path) -> None:
        """Read the encoder of the days before, and what was kept."""
        self.earlier = read_encoders(dataset / FOLDER)[self.column.name]

    @contextmanager
    def writer(self, folder: Path, total: int) -> Iterator[Append]:
        """Write the arrays of the feature, a row for each of `total` interactions."""
        place = folder / FOLDER
        place.mkdir(parents=True, exist_ok=True)
        self.rows = total
        with self._arrays(place / f"{self.stem}.npy", total) as append:
            yield append
        save_encoder(place, self.stem, self.encoder)

    def _arrays(self, path: Path, total: int) -> Any:
        raise NotImplementedError

    def entry(self) -> dict[str, Any]:
        """The entry of the schema."""
        return schema_entry(self.stem, self.encoder, self.num_values)


class NumericColumn(ContextColumn):
    """Numbers, standardised by the mean and deviation of the whole log, and a missing flag."""

    dtype, kind = np.float64, "number"

    def __init__(self, number: int, column: Column) -> None:
        super().__init__(number, column)
        self._count, self._mean, self._squares, self._unreadable = 0, 0.0, 0.0, 0
        self.num_values = 2

    def learn(self, summary: list[float]) -> None:
        """Learn number, mean and deviation of the numbers."""
        size, mean, squares, unreadable = summary
        self._unreadable += int(unreadable)
        if size:  # mean and squares of two sets together (Chan et al.)
            total, shift = self._count + int(size), mean - self._mean
            self._squares += squares + shift**2 * self._count * int(size) / total
            self._mean += shift * int(size) / total
            self._count = total

    @contextmanager
    def _arrays(self, path: Path, total: int) -> Iterator[Append]:
        if self._unreadable > self._count:
            raise DataError(
                f"{self._unreadable:,} values of context {self.column.name!r} are not numbers: "
                f"declare it as {self.column.name}:categorical"
            )
        std = float(np.sqrt(self._squares / max(self._count, 1))) or 1.0
        fitted = Encoder("numeric", {"mean": float(self._mean), "std": std})
        self.encoder = self.earlier or fitted
        with ArrayWriter(path, np.float32, total, width=2) as array:

            def append(rows: np.ndarray) -> None:
                values = self.encoder.encode(pl.Series(rows[self.name])).values
                self.present += int((values[:, 1] == 0).sum())
                array.append(values)

            yield append


class CodedColumn(ContextColumn):
    """Text of any kind: staged as the code of the whole value, encoded once for each code."""

    dtype = np.int32

    def __init__(self, number: int, column: Column) -> None:
        super().__init__(number, column)
        self._codes, self._counts = KeyCodes(), np.zeros(0, dtype=np.int64)

    def staged(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the codes of the values, and count them."""
        codes = super().staged(frame)
        self._counts = counted(self._counts, codes[codes >= 0], len(self._codes))
        return codes

    def numbers(self, values: pl.Series) -> np.ndarray:
        """Return the codes of values without counting them, −1 for none.  `[n]`, int32."""
        codes = np.full(len(values), -1, dtype=np.int32)
        codes[values.is_not_null().to_numpy()] = self._codes.encode(values.drop_nulls())
        return codes

    def learn_values(self, values: pl.Series, counts: np.ndarray) -> None:
        """Take account of a whole log: its values by first appearance, how often each occurs."""
        self._codes.encode(values)
        self._counts = counts

    def keep(self, dataset: Path) -> None:
        """Write the values and how often each occurred."""
        write_strings(dataset / REST, f"{self.name}.values", self._codes.keys)
        np.save(dataset / REST / f"{self.name}.counts.npy", self._counts)

    def resume(self, dataset: Path) -> None:
        """Read the encoder of the days before, the values and their counts."""
        super().resume(dataset)
        values = StringTable(dataset / REST, f"{self.name}.values").tolist()
        self._codes.encode(pl.Series(values, dtype=pl.String))
        self._counts = np.array(map_array(dataset / REST / f"{self.name}.counts.npy"))
        if len(self._counts) != len(values):
            raise DataError(f"{dataset / REST} contradicts itself: prepare the dataset again")

    def _encoded(self) -> Encoded:
        keys = self._codes.keys
        fitted = fit(keys, self.column)
        if self.column.kind == "categorical":  # by how often they occur, equals by their bytes
            table = pl.DataFrame({"value": keys, "count": self._counts})
            table = table.sort("count", "value", descending=[True, False])
            fitted = Encoder("categorical", {}, table["value"])
        self.encoder = fitted
        if self.earlier is not None and fitted.vocabulary is not None:
            self.encoder = self.earlier.with_values(fitted.vocabulary)
        return self.encoder.encode(keys)

    @contextmanager
    def _arrays(self, path: Path, total: int) -> Iterator[Append]:
        values, offsets, self.num_values = self._encoded()
        if offsets is None:
            known = np.append(values, values.dtype.type(0))  # code −1 is the last
            with ArrayWriter(path, np.int32, total) as array:

                def append(rows: np.ndarray) -> None:
                    self.present += int((rows[self.name] >= 0).sum())
                    array.append(known[rows[self.name]])

                yield append
            return
        starts, ends = np.append(offsets[:-1], 0), np.append(offsets[1:], 0)
        with (
            ArrayWriter(path, np.int32, None) as array,
            SumWriter(path.with_name(f"{self.stem}.offsets.npy"), total) as places,
        ):

            def append_bags(rows: np.ndarray) -> None:
                codes = rows[self.name]
                self.present += int((codes >= 0).sum())
                array.append(values[range_positions(starts[codes], ends[codes])[0]])
                places.append(ends[codes] - starts[codes])

            yield append_bags


class ClockColumn(ContextColumn):
    """What times and sessions tell of a request."""

    def __init__(self, number: int, column: Column, sessions: SessionColumn | None) -> None:
        super().__init__(number, column)
        self.carried, self._sessions = None, sessions

    @contextmanager
    def _arrays(self, path: Path, total: int) -> Iterator[Append]:
        self.encoder, compute = _CLOCKS[self.column.name]
        wide = self.encoder.kind == "numeric"
        self.num_values = 2 if wide else 1 + len(self.encoder.known_values())
        dtype, width = (np.float32, 2) if wide else (np.int32, None)
        with ArrayWriter(path, dtype, total, width=width) as array:

            def append(rows: np.ndarray) -> None:
                if self.column.name == "session_items" and self._sessions is not None:
                    numbers = self._sessions.places(rows)
                else:
                    numbers = compute(rows["user"], rows["time"])
                self.present += int(np.isfinite(numbers).sum())
                series = pl.Series(numbers)
                array.append(
                    self.encoder.encode(series).values if wide else numbers.astype(np.int32) + 1
                )

            yield append


def _since_last(users: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Seconds since the last event of the user, NaN for the first."""
    since = np.full(len(users), np.nan)
    same = users[1:] == users[:-1]
    since[1:][same] = np.diff(times)[same] / 1e6
    return since


def _numbered(size: int) -> Encoder:
    return Encoder("categorical", {}, pl.Series([str(number) for number in range(size)]))


_Compute = Callable[[np.ndarray, np.ndarray], np.ndarray]
_CLOCKS: Mapping[str, tuple[Encoder, _Compute]] = {
    "hour_of_day": (_numbered(24), lambda _, times: times // HOUR % 24),
    # 1970 began on a Thursday; Monday is 0
    "day_of_week": (_numbered(7), lambda _, times: (times // (24 * HOUR) + 3) % 7),
    "since_last": (Encoder("numeric", SINCE_LAST), _since_last),
    "session_items": (Encoder("numeric", SESSION_ITEMS), _since_last),
}


COLUMNS: dict[str, type[ContextColumn]] = {
    "categorical": CodedColumn,
    "multi_valued": CodedColumn,
    "text": CodedColumn,
    "numeric": NumericColumn,
}


def write_context_schema(folder: Path, columns: Sequence[EventColumn]) -> dict[str, dict[str, Any]]:
    """Write the schema of the context that was written, and return its summary for the manifest."""
    written = [column for column in columns if isinstance(column, ContextColumn)]
    if written:
        schema = {each.column.name: each.entry() for each in written}
        write_document(folder / FOLDER / SCHEMA, schema, indent=2)
    return {
        each.column.name: {
            "encoder": each.encoder.kind,
            "num_values": each.num_values,
            "coverage": round(each.present / max(each.rows, 1), 6),
        }
        for each in written
    }
