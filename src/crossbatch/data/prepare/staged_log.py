"""Read a source into numbers on disk: string ids become integer codes, 16 bytes an interaction.

Every line is kept, or refused and counted with a reason.  Every later stage reads chunks of flat
files, so that memory is bounded by the number of users and items, not of interactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.readers.source import Source, Tally, reader_errors
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crossbatch.data.prepare.event_columns import EventColumn
    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.progress import Progress

CHUNK_ROWS = 1 << 20
MOST_WEIGHT = 1e9  # of an event
DTYPES: dict[str, Any] = {"users": np.int32, "items": np.int32, "times": np.int64}
MICROSECONDS = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 1e-3, "order": 1.0}
LATEST = 4_102_444_800 * 1_000_000  # 2100-01-01
OFFSET = r"(:\d{2}(?:\.\d+)?) ?([+-]\d{2}):?(\d{2})?$"  # of a date with time: +05:30, -0300, +02
EARLIEST_FINE = 365 * 86_400 * 1_000_000  # 1971: an earlier "millisecond" is really a second
_LARGEST = (("s", 1e11), ("ms", 1e14), ("us", 1e17), ("ns", float("inf")))


class KeyCodes:
    """Number string keys 0, 1, 2 … in order of first appearance."""

    def __init__(self) -> None:
        self._kind = pl.Categorical(pl.Categories.random())
        self._last = pl.Series("key", [], dtype=self._kind)  # polars drops categories without use
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def encode(self, keys: pl.Series) -> np.ndarray:
        """Return the code of each key, new keys added.  Shape `[len(keys)]`, int32."""
        self._last = keys.cast(self._kind)
        codes = self._last.to_physical().to_numpy().astype(np.int32)
        self._size = max(self._size, int(codes.max(initial=-1)) + 1)
        return codes

    @property
    def keys(self) -> pl.Series:
        """All keys, in order of their codes."""
        codes = pl.int_range(self._size, dtype=pl.UInt32, eager=True).alias("key")
        convert = getattr(codes.cat, "to", codes.cast)  # the cast is the older name
        named: pl.Series = convert(self._kind)
        return named.cast(pl.String)


class LogChunk(NamedTuple):
    """Consecutive interactions: codes and times, in the order of the source."""

    users: np.ndarray  # [n] int32
    items: np.ndarray  # [n] int32
    times: np.ndarray  # [n] int64, microseconds since 1970
    first_row: int  # number of the first interaction in the log
    columns: Mapping[str, np.ndarray]  # [n] what is staged of each event column

    @property
    def row_numbers(self) -> np.ndarray:
        """Number of each interaction in the log.  `[n]`, uint64."""
        return np.arange(self.first_row, self.first_row + len(self.users), dtype=np.uint64)


class StagedLog:
    """Interactions as flat files of a folder, written once and then read in chunks.

    `columns` are what is kept of each interaction beside user, item and time.
    """

    def __init__(self, folder: Path, columns: tuple[EventColumn, ...] = ()) -> None:
        self.user_codes, self.item_codes = KeyCodes(), KeyCodes()
        self.user_counts = np.zeros(0, dtype=np.int64)  # interactions of each user code
        self.item_counts = np.zeros(0, dtype=np.int64)  # interactions of each item code
        self.rows = 0
        self.columns = columns
        self.staged_columns = [column for column in columns if column.dtype is not None]
        self.dtypes = DTYPES | {column.name: column.dtype for column in self.staged_columns}
        self._paths = [folder / f"{name}.staged" for name in self.dtypes]
        self._files = [path.open("wb") for path in self._paths]

    def append_rows(self, rows: pl.DataFrame) -> np.ndarray:
        """Add usable rows of a source and return their users' codes."""
        columns = [column.staged(rows) for column in self.staged_columns]
        return self.append(rows["user"], rows["item"], rows["time"].to_numpy(), *columns)

    def append(
        self, users: pl.Series, items: pl.Series, times: np.ndarray, *columns: np.ndarray
    ) -> np.ndarray:
        """Add interactions (keys without null, microseconds) and return their users' codes."""
        user_codes, item_codes = self.user_codes.encode(users), self.item_codes.encode(items)
        self.user_counts = counted(self.user_counts, user_codes, len(self.user_codes))
        self.item_counts = counted(self.item_counts, item_codes, len(self.item_codes))
        arrays = (user_codes, item_codes, times, *columns)
        for file, array, dtype in zip(self._files, arrays, self.dtypes.values(), strict=True):
            file.write(np.ascontiguousarray(array, dtype=dtype).data)
        self.rows += len(times)
        return user_codes

    def close(self) -> None:
        """Finish writing."""
        for file in self._files:
            file.close()

    def chunks(self) -> Iterator[LogChunk]:
        """Yield the log from its beginning, `CHUNK_ROWS` interactions at a time."""
        for first in range(0, self.rows, CHUNK_ROWS):
            users, items, times, *more = (
                np.fromfile(path, dtype, CHUNK_ROWS, offset=first * np.dtype(dtype).itemsize)
                for path, dtype in zip(self._paths, self.dtypes.values(), strict=True)
            )
            names = [column.name for column in self.staged_columns]
            yield LogChunk(users, items, times, first, dict(zip(names, more, strict=True)))


def counted(counts: np.ndarray, codes: np.ndarray, size: int) -> np.ndarray:
    """Return the counts with further codes added; new codes start at zero.  `[size]`."""
    more = np.bincount(codes, minlength=size)
    more[: len(counts)] += counts
    return more


def read_log(
    source: Source, log: StagedLog, tally: Tally, options: PrepareOptions, progress: Progress
) -> np.ndarray | None:
    """Read a whole source to the end of a staged log; refuse it if too many lines are bad.

    Returns the split that the source gives for each user code, if it does: 0 train, 1 valid,
    2 test.
    """
    time_reader = TimeReader(source.time_unit, tally)
    earlier = log.rows
    user_split = np.zeros(0, dtype=np.int8)
    try:
        for batch in source.batches(tally):
            rows = usable_events(batch, time_reader, tally, options)
            codes = log.append_rows(rows)
            if "split" in rows.columns:
                user_split = _with_new_users(user_split, codes, rows["split"].to_numpy())
            progress("reading", tally.lines, source.expected_rows)
    finally:
        log.close()
    check_read(source, tally, log.rows - earlier)
    return user_split if len(user_split) else None


def check_read(source: Source, tally: Tally, rows: int) -> None:
    """Raise `DataError` if too many lines were refused or nothing is left."""
    tally.check()
    if not rows:
        raise DataError(f"no interactions were read from {source.name}: is it the right file?")


def usable_events(
    batch: pl.DataFrame, time_reader: TimeReader, tally: Tally, options: PrepareOptions
) -> pl.DataFrame:
    """Return the rows of a batch that can be used, with their weights, where the log has any."""
    for name in ("user", "item"):
        if batch[name].dtype.is_nested() or batch[name].dtype == pl.Boolean:
            raise DataError(f"the {name} column holds {batch[name].dtype}, not ids: name another")
    with reader_errors("the user, item or time column"):
        ids = [pl.col(name).cast(pl.String) for name in ("user", "item")]
        frame = batch.with_columns(*ids, time_reader.read(batch["time"]))
    tally.lines += len(frame)
    for name, reason in (("user", "no user id"), ("item", "no item id")):
        present = (frame[name].is_not_null()) & (frame[name] != "")
        frame = _refuse(frame, present, reason, tally)
    timed = frame["time"].is_not_null()
    frame = _refuse(frame, timed, "time missing, unreadable or absurd", tally)
    if options.min_rating is not None:
        if "rating" not in frame.columns:
            raise DataError(
                "the source has no rating, so --min-rating cannot be applied: leave it out"
            )
        enough = pl.col("rating").cast(pl.Float64, strict=False) >= options.min_rating
        frame = _left_out(frame, enough, "below_rating", tally)
    if "event" not in frame.columns and "weight" not in frame.columns:
        return frame
    frame = _weighted(frame, options.event_weights, tally)
    weighed = frame["weight"].is_not_null()
    return _refuse(frame, weighed, "weight missing or not 0 to 1e9", tally)


def _weighted(
    frame: pl.DataFrame, event_weights: Mapping[str, float] | None, tally: Tally
) -> pl.DataFrame:
    """Return rows with their weight, null where it is unusable.

    The weight is that of the kind of event times that of the row; an event of a kind without a
    weight is left out.
    """
    weight = pl.lit(1.0)
    if "weight" in frame.columns:
        given = pl.col("weight").cast(pl.Float64, strict=False)
        weight = pl.when((given >= 0) & (given <= MOST_WEIGHT)).then(given)
    if event_weights is not None:
        kinds = frame["event"].cast(pl.String).str.strip_chars()
        of_kind = kinds.replace_strict(dict(event_weights), default=None, return_dtype=pl.Float64)
        frame = frame.with_columns(of_kind.alias("event"))
        frame = _left_out(frame, pl.col("event").is_not_null(), "other_events", tally)
        weight = weight * pl.col("event")
    return frame.with_columns(weight.alias("weight"))


def _left_out(frame: pl.DataFrame, kept: pl.Expr, what: str, tally: Tally) -> pl.DataFrame:
    rest = frame.filter(kept)
    tally.left_out[what] += len(frame) - len(rest)
    return rest


def _refuse(frame: pl.DataFrame, good: pl.Series, reason: str, tally: Tally) -> pl.DataFrame:
    if good.all():
        return frame
    bad = frame.filter(~good)
    example = ", ".join(f"{key}={value}" for key, value in bad.row(0, named=True).items())
    tally.refuse(reason, len(bad), example)
    return frame.filter(good)


def _with_new_users(known: np.ndarray, codes: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Add the splits of users first seen in this batch; a user in two splits is an error."""
    splits = np.full(max(len(known), int(codes.max(initial=-1)) + 1), -1, dtype=np.int8)
    splits[: len(known)] = known
    new = codes >= len(known)
    splits[codes[new][::-1]] = given[new][::-1]
    if (splits[codes] != given).any():
        raise DataError(
            "a user appears in two of the train, valid and test files: they must be disjoint"
        )
    return splits


class TimeReader:
    """Turns times of any unit into microseconds since 1970.

    The unit is "s", "ms", "us", "ns", "order" (any number that only orders), or "auto": dates are
    recognised by their type, numbers by the size of the first batch's median; the tally notes it.
    """

    def __init__(self, unit: str, tally: Tally) -> None:
        if unit != "auto" and unit not in MICROSECONDS:
            raise ConfigError(f"time unit must be auto, {', '.join(MICROSECONDS)}, got {unit!r}")
        self.unit, self._tally = unit, tally

    def read(self, column: pl.Series) -> pl.Series:
        """Return microseconds, null where the value is missing, no time, or out of range.

        The name stays; shape `[n]`, int64.
        """
        if column.dtype in (pl.Date, pl.Datetime):
            return column.cast(pl.Datetime("us")).to_physical()
        if column.dtype == pl.String:
            numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
            if numbers.null_count() == len(numbers) and len(numbers):
                return self._dates(column)
            column = numbers
        numbers = column.cast(pl.Float64, strict=False)
        unit = self._resolve(numbers)
        scaled = numbers * MICROSECONDS[unit]
        earliest = EARLIEST_FINE if unit in ("ms", "us", "ns") else 0
        latest = 2.0**62 if unit == "order" else LATEST
        possible = scaled.is_finite() & (scaled >= earliest) & (scaled <= latest)
        return scaled.set(~possible.fill_null(value=False), None).round(0).cast(pl.Int64)

    def _dates(self, column: pl.Series) -> pl.Series:
        # polars reads one format at a time: a mixed column would otherwise lose one of them
        text = column.str.strip_chars().str.replace("T", " ").str.replace("Z$", "")
        offset = _microseconds_east(text)
        text = text.str.replace(OFFSET, "$1")
        parsed = [
            text.str.to_datetime(pattern, time_unit="us", strict=False)
            for pattern in ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y/%m/%d %H:%M:%S")
        ]
        parsed.append(text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us")))
        frame = pl.DataFrame({str(number): series for number, series in enumerate(parsed)})
        times = frame.select(pl.coalesce(pl.all()).alias(column.name)).to_series().to_physical()
        times -= offset
        return times.set(((times < 0) | (times > LATEST)).fill_null(value=False), None)

    def _resolve(self, numbers: pl.Series) -> str:
        if self.unit == "auto":
            median = numbers.filter(numbers.is_finite()).median()
            size = abs(float(median)) if isinstance(median, (int, float)) else 0.0
            self.unit = next(unit for unit, largest in _LARGEST if size < largest)
            self._tally.notes.append(f"times read as {self.unit} since 1970")
        return self.unit


def _microseconds_east(dates: pl.Series) -> pl.Series:
    """How far the clock of each date is ahead of UTC; 0 where it has no offset.  `[n]`, int64."""
    hours, minutes = dates.str.extract(OFFSET, 2), dates.str.extract(OFFSET, 3)
    digits = (hours.str.tail(2) + minutes.fill_null("00")).cast(pl.Int64)
    east = digits // 100 * 60 + digits % 100
    west = hours.str.starts_with("-").cast(pl.Int64)
    return (east * (1 - 2 * west) * 60_000_000).fill_null(0)
