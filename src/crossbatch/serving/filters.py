"""Filters: which items may be recommended, by conditions on columns of the catalogue.

    columns = FilterColumns(frame)                                  # a row for each item
    columns.allowed({"in_stock": True, "category": ["a", "b"], "price": {"<": 20}})

A filter has a condition for each column that it names, and an item must meet all of them:

- a value: the item has it; null: the item has none;
- a list: the item has one of these values;
- an object: `<`, `<=`, `>`, `>=` with a number or a time; `not` with any of the above.

A column of lists has a value if one of the item's is that. A missing value meets nothing but null
and `not`.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from crossbatch.errors import ConfigError, DataError
from crossbatch.retrieval import Allowed
from crossbatch.serving.column_index import COMPARISONS, ColumnIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

KINDS: dict[str, pl.DataType] = {
    "boolean": pl.Boolean(),
    "integer": pl.Int64(),
    "number": pl.Float64(),
    "time": pl.Datetime("us", "UTC"),
    "text": pl.String(),
    "list": pl.List(pl.String()),
}
SEPARATOR = "|"  # of a list that is given as a string
WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
MAX_VALUES = 1_000  # of one condition
MAX_KEPT, MAX_KEPT_BYTES = 64, 256 << 20  # sets of items that are kept for the next request

Filter = dict[str, Any]


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
    for operator, value in condition.items():
        if operator == "not":
            if isinstance(value, dict) and "not" in value:
                raise ConfigError(f"filter.{name}: a not inside a not; leave both out")
            parts.append(~_met(name, index, value))
        elif operator not in COMPARISONS:
            raise ConfigError(
                f"filter.{name}: unknown operator {operator!r}; use {', '.join(COMPARISONS)} or not"
            )
        elif index.kind not in ("integer", "number", "time") or value is None or _is_list(value):
            raise ConfigError(
                f"filter.{name}: {operator!r} compares one number or time, got {value!r} for a "
                f"column of kind {index.kind}"
            )
        else:
            parts.append(index.compare(operator, _value(name, index.kind, value)))
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


# --- from tables to columns ---


def split_declaration(declaration: str) -> tuple[str, str | None]:
    """Name and kind of `NAME` or `NAME:KIND`."""
    name, separator, kind = declaration.partition(":")
    if not name or (separator and kind not in KINDS):
        raise ConfigError(
            f"--filter-column must be NAME or NAME:KIND with a kind of {', '.join(KINDS)}, "
            f"got {declaration!r}"
        )
    return name, kind or None


def as_column(series: pl.Series, kind: str | None = None) -> pl.Series:
    """A column of a table as one of the types of `KINDS`: the kind given, or the nearest one.

    Raises:
        DataError: If there are values that the kind cannot hold.
    """
    kind = kind or _nearest_kind(series)
    given = series
    if kind == "list" and not isinstance(series.dtype, pl.List):
        series = series.cast(pl.String, strict=False).str.split(SEPARATOR)
        series = series.list.eval(pl.element().str.strip_chars()).list.eval(
            pl.element().filter(pl.element() != "")
        )
    if kind == "boolean" and series.dtype != pl.Boolean:
        words = series.cast(pl.String, strict=False).str.to_lowercase()
        series = words.replace_strict(WORDS, default=None, return_dtype=pl.Boolean)
    if kind == "time" and series.dtype == pl.String:
        series = series.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
    if kind == "time" and isinstance(series.dtype, pl.Datetime) and series.dtype.time_zone is None:
        series = series.dt.replace_time_zone("UTC")
    if kind in ("integer", "number") and series.dtype.is_float():
        series = series.fill_nan(None)
        if kind == "integer":
            series = series.set(series != series.round(), None)
    try:
        cast = series.cast(KINDS[kind], strict=False)
    except pl.exceptions.PolarsError:
        cast = pl.Series(series.name, [None] * len(series), dtype=KINDS[kind])
    if kind == "number":
        cast = cast.set(cast.is_infinite().fill_null(value=False), None)
    there = given.is_not_null()
    if given.dtype.is_float():
        there &= given.is_not_nan().fill_null(value=True)
    if (lost := given.filter(there & cast.is_null())).len():
        raise DataError(
            f"column {given.name!r} has {len(lost):,} values that are no {kind}, such as "
            f"{lost[0]!r}: mend them, or declare another kind as {given.name}:KIND"
        )
    return cast


def _nearest_kind(series: pl.Series) -> str:
    dtype = series.dtype
    if dtype == pl.Boolean:
        return "boolean"
    if dtype.is_integer():
        return "integer"
    if dtype.is_float() or isinstance(dtype, pl.Decimal):
        return "number"
    if isinstance(dtype, pl.Date | pl.Datetime):
        return "time"
    if isinstance(dtype, pl.List):
        return "list"
    return "text"


def keyed_rows(table: pl.DataFrame, key: str, ids: Callable[[Sequence[str]], np.ndarray]) -> Any:
    """Item id of each row of a table by its column of keys, 0 where unknown.  `[R]`, int64.

    Raises:
        DataError: If there is no such column, or keys are missing or repeated.
    """
    if key not in table.columns:
        raise DataError(
            f"the items need a column {key!r} with their keys; they have {', '.join(table.columns)}"
        )
    keys = table[key].cast(pl.String)
    if keys.null_count():
        raise DataError(f"column {key!r} has {keys.null_count():,} rows without a key")
    if repeated := keys.filter(keys.is_duplicated()).unique(maintain_order=True).to_list():
        raise DataError(f"{len(repeated):,} items have several rows, such as {repeated[0]!r}")
    return ids(keys.to_list())


def columns_of(
    table: pl.DataFrame, key: str, wanted: Mapping[str, str | None], num_items: int, ids: Any
) -> pl.DataFrame:
    """Columns of a table, a row for each of the items 1 … N; missing where the table has none."""
    rows = keyed_rows(table, key, ids)
    frame = pl.DataFrame({"id": np.arange(1, num_items + 1)})
    values = pl.DataFrame({"id": rows}).with_columns(
        [as_column(table[name], kind).alias(name) for name, kind in wanted.items()]
    )
    joined = frame.join(values.filter(pl.col("id") > 0), on="id", how="left", maintain_order="left")
    return joined.select(list(wanted))
