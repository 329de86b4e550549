"""Logs in parts: columns that folders name (`day=2024-01-31/`), and parts that do not agree."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

import polars as pl

from crossbatch.data.readers.table_files import column_names, file_kind, parquet_schema
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

NULL = "__HIVE_DEFAULT_PARTITION__"
IDS = ("user", "item")


def folder_values(file: Path) -> dict[str, str | None]:
    """Return the columns that a file's folders name, as Hive and Spark lay them out."""
    pairs = (name.split("=", 1) for name in file.parent.parts if "=" in name)
    return {name: None if value == NULL else unquote(value) for name, value in pairs}


def part_columns(file: Path) -> list[str]:
    """Return a part's columns: its own, then those of its folders."""
    own = column_names(file)
    return own + [name for name in folder_values(file) if name not in own]


def check_parts(files: Sequence[Path], columns: Mapping[str, str]) -> None:
    """Raise `DataError` unless all Parquet files have the columns, with types that agree.

    Ids of several types must not meet: the user 7 of one file would be the user 7.0 of another.
    Other formats hold text, and name a missing column when it is read.
    """
    if file_kind(files[0]) != "parquet":
        return
    first: dict[str, tuple[pl.DataType, Path]] = {}
    for file in files:
        schema, named = parquet_schema(file), folder_values(file)
        for ours, theirs in columns.items():
            if theirs not in schema and theirs not in named:
                raise DataError(
                    f"{file} has no column {theirs!r}, unlike {files[0]}: every part of a log "
                    f"needs it; its columns are {', '.join(part_columns(file))}"
                )
            dtype = schema.get(theirs, pl.String())
            known, origin = first.setdefault(ours, (dtype, file))
            if _family(dtype, ours) != _family(known, ours) and pl.Null not in (dtype, known):
                raise DataError(
                    f"column {theirs!r} is {known} in {origin} but {dtype} in {file}: "
                    "write all parts with one type"
                )


def _family(dtype: pl.DataType, ours: str) -> str:
    """Return types that may stand in for each other under one name."""
    if dtype.is_integer() or (dtype.is_numeric() and ours not in IDS):
        return "number"
    return "date" if dtype.is_temporal() else str(dtype)
