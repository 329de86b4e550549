"""Filters: which items may be recommended, by conditions on columns of the catalogue.

    columns = FilterColumns(frame)                                  # a row for each item
    columns.allowed({"in_stock": True, "category": ["a", "b"], "price": {"<": 20}})

A filter has a condition for each column that it names, and an item must meet all of them:

- a value: the item has it; null: the item has none;
- a list: the item has one of these values;
- an object: `<`, `<=`, `>`, `>=` with a number or a time; `not` with any of the above.

A column of lists has a value if one of the item's is that. A missing value meets nothing but null
and `not`.

Conditions are evaluated as comparisons of NumPy arrays: over a million items ten times as fast as
those of a data frame, because strings are compared as codes and the result is not packed into bits.
"""

from __future__ import annotations

import json
import math
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce
from typing import Any

import numpy as np
import polars as pl
import torch

from crossbatch.data.dataset.arrays import offsets_of
from crossbatch.errors import ConfigError, DataError
from crossbatch.retrieval import Allowed

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
FEW = 8  # values that are compared one by one
INTEGERS = np.iinfo(np.int64)
KINDS: dict[str, pl.DataType] = {
    "boolean": pl.Boolean(),
    "integer": pl.Int64(),
    "number": pl.Float64(),
    "time": pl.Datetime("us", "UTC"),
    "text": pl.String(),
    "list": pl.List(pl.String()),
}
MAX_VALUES = 1_000  # of one condition
MAX_KEPT, MAX_KEPT_BYTES = 64, 256 << 20  # sets of items that are kept for the next request


class FilterColumns:
    """The columns of a catalogue that requests may filter by.

    Args:
        frame: A row for each of the items 1 … N; columns of the types of `KINDS`.
    """

    def __init__(self, frame: pl.DataFrame) -> None:
        types = set(KINDS.values())
        if wrong := [name for name, kind in frame.schema.items() if kind not in types]:
            raise DataError(f"filter column {wrong[0]!r} has the type {frame.schema[wrong[0]]}")
        self.frame = frame
        self._indexes = {name: ColumnIndex(frame[name], kind) for name, kind in self.kinds.items()}
        self._kept: OrderedDict[str, Allowed] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def kinds(self) -> dict[str, str]:
        """Kind of each column, a key of `KINDS`, by name."""
        names = {kind: name for name, kind in KINDS.items()}
        return {name: names[kind] for name, kind in self.frame.schema.items()}

    def prepare(self) -> None:
        """Build now what the first filter would wait for."""
        for index in self._indexes.values():
            index.prepare()

    def allowed(self, conditions: Mapping[str, Any]) -> Allowed:
        """The items that meet a filter; of the same filter the same object, as long as it is kept.

        Raises:
            ConfigError: If it names a column that there is not, or asks what a column cannot tell.
        """
        key = json.dumps(conditions, sort_keys=True, default=str)
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = Allowed(self._mask(conditions))
            self._kept.move_to_end(key)
            sizes = [each.num_bytes for each in self._kept.values()]
            while len(sizes) > 1 and (len(sizes) > MAX_KEPT or sum(sizes) > MAX_KEPT_BYTES):
                self._kept.popitem(last=False)
                sizes.pop(0)
        return found

    def _mask(self, conditions: Mapping[str, Any]) -> torch.Tensor:
        """`[N + 1]` bool, row = item id."""
        parts = []
        for name, condition in conditions.items():
            if name not in self._indexes:
                known = ", ".join(self._indexes) or "none"
                raise ConfigError(f"filter: there is no column {name!r}; there are: {known}")
            parts.append(_met(name, self._indexes[name], condition))
        mask = np.zeros(len(self.frame) + 1, dtype=bool)
        mask[1:] = reduce(np.logical_and, parts) if parts else True
        return torch.from_numpy(mask)


def no_columns(recommender: str) -> ConfigError:
    """The refusal of a filter where no column was declared."""
    return ConfigError(
        f"filter: {recommender} has no filter columns; declare them with `crossbatch export RUN "
        "--filter-column NAME`"
    )


def _met(name: str, index: ColumnIndex, condition: Any) -> np.ndarray:
    """Whether each item meets the condition on a column.  `[N]`, bool."""
    if not isinstance(condition, dict):
        return _equals(name, index, condition)
    if not condition:
        raise ConfigError(f"filter.{name}: an empty object; use {', '.join(COMPARISONS)} or not")
    parts = []
    for comparison, value in condition.items():
        if comparison == "not":
            if isinstance(value, dict) and "not" in value:
                raise ConfigError(f"filter.{name}: a not inside a not; leave both out")
            parts.append(~_met(name, index, value))
        elif comparison not in COMPARISONS:
            raise ConfigError(
                f"filter.{name}: unknown operator {comparison!r}; "
                f"use {', '.join(COMPARISONS)} or not"
            )
        elif index.kind not in ("integer", "number", "time") or value is None or _is_list(value):
            raise ConfigError(
                f"filter.{name}: {comparison!r} compares one number or time, got {value!r} for a "
                f"column of kind {index.kind}"
            )
        else:
            parts.append(index.compare(comparison, _value(name, index.kind, value)))
    return reduce(np.logical_and, parts)


def _equals(name: str, index: ColumnIndex, condition: Any) -> np.ndarray:
    """Whether each item has the value, or one of the values.  `[N]`, bool."""
    asked = list(condition) if _is_list(condition) else [condition]
    if len(asked) > MAX_VALUES:
        raise ConfigError(f"filter.{name}: at most {MAX_VALUES} values, got {len(asked)}")
    values = [_value(name, index.kind, value) for value in asked if value is not None]
    if index.kind == "integer":
        values = [value for value in values if isinstance(value, int)]  # others equal none
    found = index.has(values)
    return found | index.missing if None in asked else found


def _is_list(condition: Any) -> bool:
    return isinstance(condition, list | tuple | set | frozenset)


def _value(name: str, kind: str, value: Any) -> Any:
    """A value of a condition as the column's kind; raise `ConfigError` if it is none."""
    if isinstance(value, np.generic):
        value = value.item()
    fits = {
        "boolean": isinstance(value, bool),
        "integer": _is_number(value),
        "number": _is_number(value),
        "text": isinstance(value, str),
        "list": isinstance(value, str),
        "time": isinstance(value, str | datetime),
    }[kind]
    if fits and kind == "time" and isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            fits = False
    if not fits:
        words = {"text": "a string", "list": "strings", "time": 'a time such as "2024-05-31"'}
        wanted = words.get(kind, f"a {kind}" if kind != "integer" else "an integer")
        raise ConfigError(f"filter.{name} must be {wanted}, got {value!r}")
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC)
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind in ("integer", "number") and abs(value) >= 2**63:
        return float(value)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
