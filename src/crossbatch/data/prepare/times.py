"""Times of any unit as microseconds since 1970; what cannot be a time is refused and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from crossbatch.data.readers.source import Tally

MICROSECONDS = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 1e-3, "order": 1.0}
LATEST = 4_102_444_800 * 1_000_000  # 2100-01-01
EARLIEST_FINE = 365 * 86_400 * 1_000_000  # 1971: an earlier "millisecond" is a second gone astray

_LARGEST = (("s", 1e11), ("ms", 1e14), ("us", 1e17), ("ns", float("inf")))


class TimeReader:
    """Turns a column of times into microseconds.

    Args:
        unit: "s", "ms", "us", "ns", "order" (any number that only orders), or "auto": dates are
            recognised by their type, numbers by the size of the first batch's median.
        tally: Where the decision is noted.
    """

    def __init__(self, unit: str, tally: Tally) -> None:
        if unit != "auto" and unit not in MICROSECONDS:
            raise ConfigError(f"time unit must be auto, {', '.join(MICROSECONDS)}, got {unit!r}")
        self.unit, self._tally = unit, tally

    def read(self, column: pl.Series) -> pl.Series:
        """Return microseconds, null where the value is missing, no time, or absurd.

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
        sane = scaled.is_finite() & (scaled >= earliest) & (scaled <= latest)
        return scaled.set(~sane.fill_null(value=False), None).round(0).cast(pl.Int64)

    def _dates(self, column: pl.Series) -> pl.Series:
        # the engine reads each format alone: a mixed column would otherwise lose one of them
        text = column.str.strip_chars().str.replace("T", " ").str.replace(r"(Z|\+00:?00)$", "")
        parsed = [
            text.str.to_datetime(pattern, time_unit="us", strict=False)
            for pattern in ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y/%m/%d %H:%M:%S")
        ]
        parsed.append(text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us")))
        frame = pl.DataFrame({str(number): series for number, series in enumerate(parsed)})
        times = frame.select(pl.coalesce(pl.all()).alias(column.name)).to_series().to_physical()
        return times.set(((times < 0) | (times > LATEST)).fill_null(value=False), None)

    def _resolve(self, numbers: pl.Series) -> str:
        if self.unit == "auto":
            median = numbers.filter(numbers.is_finite()).median()
            size = abs(float(median)) if isinstance(median, (int, float)) else 0.0
            self.unit = next(unit for unit, largest in _LARGEST if size < largest)
            self._tally.notes.append(f"times read as {self.unit} since 1970")
        return self.unit
