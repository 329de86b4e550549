"""`ColumnIndex`: which items of a catalogue have a value, in a fraction of a millisecond.

prices = ColumnIndex(pl.Series([3.5, None, 8.0]), "number")
prices.compare("<", 5.0)    # true, false, false

Conditions are evaluated as comparisons of NumPy arrays: over a million items ten times as fast as
those of a data frame, because strings are compared as codes and the result is not packed into bits.
"""

from __future__ import annotations

import math
import operator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
FEW = 8  # values that are compared one by one
INTEGERS = np.iinfo(np.int64)


class ColumnIndex:
    """The values of one filter column, as arrays.

    Args:
        column: A value for each of N items; of the type of its kind.
        kind: A key of `crossbatch.serving.filters.KINDS`.
    """

    def __init__(self, column: pl.Series, kind: str) -> None:
        self.column, self.kind = column, kind

    def prepare(self) -> None:
        """Build now what the first condition would wait for."""
        _ = self.missing, self._postings if self.kind == "list" else self._array

    def has(self, values: Sequence[Any]) -> np.ndarray:
        """Whether each item has one of the values.  `[N]`, bool."""
        if self.kind == "list":
            return self._in_lists(values)
        array, wanted = self._array, list(values)
        if self.kind in ("text", "boolean"):
            wanted = self._codes(values)
        elif self.kind == "time":
            wanted = list(map(_microseconds, values))
        if len(wanted) > FEW and self.kind in ("text", "boolean"):
            known = np.zeros(len(self._distinct) + 1, dtype=bool)
            known[wanted] = True
            return known.take(array)
        if len(wanted) > FEW:
            several = pl.Series(values, dtype=self.column.dtype).implode()
            return self.column.is_in(several).fill_null(value=False).to_numpy()
        found = np.zeros(len(array), dtype=bool)
        for value in wanted:
            found |= array == value
        return self._there(found)

    def compare(self, comparison: str, limit: Any) -> np.ndarray:
        """Whether each item has a value on one side of a limit.  `[N]`, bool.

        Args:
            comparison: A key of `COMPARISONS`.
            limit: A number, or a time.
        """
        if self.kind == "time":
            limit = _microseconds(limit)
        elif self.kind == "integer":  # whole numbers alone are compared exactly
            limit = math.ceil(limit) if comparison in ("<", ">=") else math.floor(limit)
        below = comparison.startswith("<")
        if self.kind == "integer" and not INTEGERS.min <= limit <= INTEGERS.max:
            return self._there(np.full(len(self.column), below == (limit > 0)))
        return self._there(COMPARISONS[comparison](self._array, limit))

    @cached_property
    def missing(self) -> np.ndarray:
        """Whether each item has no value.  `[N]`, bool."""
        column = self.column
        empty = column.list.len().fill_null(0) == 0 if self.kind == "list" else column.is_null()
        return empty.to_numpy()

    @cached_property
    def _array(self) -> np.ndarray:
        """The values, or codes of strings: those of `_distinct` from 1 on, 0 where missing."""
        column = self.column
        if self.kind in ("text", "boolean"):
            count = len(self._distinct)
            codes = pl.Series(np.arange(1, count + 1, dtype=np.min_scalar_type(count)))
            column = column.replace_strict(
                self._distinct, codes, default=0, return_dtype=codes.dtype
            )
        elif self.kind == "number":
            return column.to_numpy()  # NaN where missing, which meets no comparison
        return column.to_physical().fill_null(0).to_numpy()

    @cached_property
    def _distinct(self) -> pl.Series:
        """The values that occur, ascending."""
        values = self.column.explode() if self.kind == "list" else self.column
        return values.drop_nulls().unique().sort()

    def _codes(self, values: Sequence[Any]) -> list[int]:
        """The codes of those of the values that occur."""
        wanted = pl.Series(values, dtype=self._distinct.dtype)
        if not len(wanted) or not len(self._distinct):
            return []
        places = self._distinct.search_sorted(wanted)
        found = self._distinct.gather(places.clip(upper_bound=len(self._distinct) - 1)) == wanted
        return (places.filter(found) + 1).to_list()

    def _there(self, found: np.ndarray) -> np.ndarray:
        """Nothing is found in an item whose value is missing and stands as 0 in the array."""
        if self.kind in ("integer", "time") and self.column.null_count():
            found &= ~self.missing
        return found

    @cached_property
    def _postings(self) -> tuple[np.ndarray, np.ndarray]:
        """Items of a column of lists by value, and the offset of each value among them."""
        pairs = pl.DataFrame({"value": self.column}).with_row_index("row").explode("value")
        pairs = pairs.drop_nulls("value").sort("value", maintain_order=True)
        lengths = pairs["value"].rle().struct.field("len").to_numpy()
        return pairs["row"].to_numpy(), offsets_of(lengths)

    def _in_lists(self, values: Sequence[str]) -> np.ndarray:
        rows, offsets = self._postings
        found = np.zeros(len(self.column), dtype=bool)
        for code in self._codes(values):
            found[rows[offsets[code - 1] : offsets[code]]] = True
        return found


def _microseconds(moment: datetime) -> int:
    """Since 1970, exactly."""
    return (moment - EPOCH) // MICROSECOND
