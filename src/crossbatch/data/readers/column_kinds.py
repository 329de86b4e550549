"""Guess the kinds of content columns from their types, where that is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from crossbatch.data.readers.source import Column
from crossbatch.data.readers.table_files import file_kind, line_bytes

if TYPE_CHECKING:
    from pathlib import Path

TEXT_NAMES = ("title", "name", "description", "text")
MOST_VALUES = 0.5  # a string column with more distinct values than this share is an id, not a kind
SAMPLE_ROWS = 20_000


def infer_columns(table: Path, key: str) -> tuple[Column, ...]:
    """Return the features of a content table by the types of its columns.

    Numbers are numeric, lists of strings multi-valued, lists of numbers dense vectors; strings are
    text if they are named like a title, categorical if their values repeat, else left out: a wrong
    guess would be worse than none, and `--item-feature name:kind` decides otherwise.
    """
    sample = _sample(table)
    columns = []
    for name in sample.columns:
        kind = _kind(name, sample[name])
        if name != key and kind is not None:
            columns.append(Column(name, kind))
    return tuple(columns)


def _sample(table: Path) -> pl.DataFrame:
    kind = file_kind(table)
    if kind == "parquet":
        return pl.scan_parquet(table).head(SAMPLE_ROWS).collect()
    if kind == "json":
        return pl.read_ndjson(line_bytes(table), infer_schema_length=None).head(SAMPLE_ROWS)
    mark = "\t" if kind == "tsv" else ","
    return pl.read_csv(
        line_bytes(table), separator=mark, n_rows=SAMPLE_ROWS, infer_schema_length=None
    )


def _kind(name: str, column: pl.Series) -> str | None:
    dtype = column.dtype
    if isinstance(dtype, (pl.List, pl.Array)):
        return "dense" if dtype.inner.is_numeric() else "multi_valued"
    if dtype.is_numeric():
        return "numeric"
    if dtype == pl.Boolean or isinstance(dtype, (pl.Categorical, pl.Enum)):
        return "categorical"
    if dtype != pl.String:
        return None
    if name.lower() in TEXT_NAMES:
        return "text"
    present = column.drop_nulls()
    return "categorical" if present.n_unique() <= MOST_VALUES * len(present) else None
