"""Files of tables: their kind by suffix, their columns and parts, and content tables read whole.

A log may lie in parts whose folders name a column (`day=2024-01-31/`), as Hive and Spark write it.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import polars as pl

from crossbatch.data.readers.source import Column, Tally
from crossbatch.data.readers.text_tables import first_object, line_blocks, read_whole, split_header
from crossbatch.errors import DataError

SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".jsonl": "json",
    ".jsonl.gz": "json",
    ".ndjson": "json",
    ".json": "json",
    ".json.gz": "json",
}
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
IDS = ("user", "item")
TEXT_NAMES = ("title", "name", "description", "text")
MOST_VALUES = 0.5  # a string column with a larger share of distinct values is no category
SAMPLE_ROWS = 20_000


def file_kind(path: Path) -> str:
    """Return "parquet", "csv", "tsv" or "json" by a file's suffix."""
    kind = next((kind for suffix, kind in SUFFIXES.items() if path.name.endswith(suffix)), None)
    if kind is None:
        raise DataError(
            f"{path.name} has no known suffix: rename it to one of {', '.join(SUFFIXES)}"
        )
    return kind


def data_files(path: Path) -> list[Path]:
    """Return a file itself, or the files of a folder, its subfolders, or a pattern, in order.

    The order is that of the paths, folder by folder; names that begin with a dot or an underscore
    are bookkeeping of engines (`_SUCCESS`, `.crc`), not data.
    """
    if path.is_file():
        return [path]
    if is_pattern(path):
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207
        if not found:
            raise DataError(f"{path} matches no file")
        return [file for match in found for file in data_files(match)]
    if not path.is_dir():
        raise DataError(f"{path} does not exist")
    files = sorted(
        file
        for file in path.rglob("*")
        if file.name.endswith(tuple(SUFFIXES))
        and not any(name.startswith((".", "_")) for name in file.relative_to(path).parts)
    )
    if not files:
        raise DataError(f"{path} holds no file with a suffix of {', '.join(SUFFIXES)}")
    return files


def is_pattern(path: Path) -> bool:
    """Return whether a path is a pattern of paths, such as `lake/day=2024-*/*.parquet`."""
    return glob.has_magic(str(path)) and not path.exists()


def column_names(path: Path) -> list[str]:
    """Return a file's columns without reading it."""
    kind = file_kind(path)
    if kind == "json":
        return list(first_object(path))
    if kind == "parquet":
        return _scan(path).collect_schema().names()
    return split_header(path, "\t" if kind == "tsv" else ",")


def read_table(
    path: Path, key: str, wanted: list[str], keys: pl.Series, tally: Tally
) -> pl.DataFrame:
    """Return the wanted columns of the rows with the given keys; the key's column is `key`."""
    kind = file_kind(path)
    columns = {"key": key, **{name: name for name in wanted}}
    if kind == "parquet":
        chosen = _scan(path).select(pl.col(theirs).alias(ours) for ours, theirs in columns.items())
        text = pl.col("key").cast(pl.String)
        return chosen.with_columns(text).filter(pl.col("key").is_in(keys.implode())).collect()
    if kind == "json":
        return _json_table(path, columns)
    if kind == "csv":
        # content may hold quoted line breaks, so it is parsed as one piece
        frame = pl.read_csv(line_bytes(path), infer_schema=False)
        return frame.select(pl.col(theirs).alias(ours) for ours, theirs in columns.items())
    return read_whole(path, columns, tally, separator="\t")


def line_bytes(path: Path) -> bytes:
    """Return a whole text file, decompressed."""
    return b"".join(line_blocks(path))


def _json_table(path: Path, columns: dict[str, str]) -> pl.DataFrame:
    try:
        frame = pl.read_ndjson(line_bytes(path), infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path.name} cannot be read as JSON lines: {error}") from error
    missing = [name for name in columns.values() if name not in frame.columns]
    blanks = [pl.lit(None, dtype=pl.String).alias(name) for name in missing]
    full = frame.with_columns(blanks)
    return full.select(pl.col(theirs).alias(ours) for ours, theirs in columns.items())


def _scan(path: Path) -> pl.LazyFrame:
    try:
        frame = pl.scan_parquet(path)
        frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path.name} cannot be read as Parquet: {error}") from error
    return frame


def folder_values(file: Path) -> dict[str, str | None]:
    """Return the columns that a file's folders name, as Hive and Spark lay them out."""
    pairs = (name.split("=", 1) for name in file.parent.parts if "=" in name)
    return {name: None if value == HIVE_NULL else unquote(value) for name, value in pairs}


def part_columns(file: Path) -> list[str]:
    """Return a part's columns: its own, then those of its folders."""
    own = column_names(file)
    return own + [name for name in folder_values(file) if name not in own]


def check_parts(files: Sequence[Path], columns: Mapping[str, str]) -> None:
    """Raise `DataError` unless all Parquet files have the columns, with types that agree.

    Ids must have one type: the user 7 of one file would be the user 7.0 of another.
    Other formats hold text; there a missing column is found when the file is read.
    """
    if file_kind(files[0]) != "parquet":
        return
    first: dict[str, tuple[pl.DataType, Path]] = {}
    for file in files:
        schema, named = _scan(file).collect_schema(), folder_values(file)
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
    """Return a name that types share if one may replace the other."""
    if dtype.is_integer() or (dtype.is_numeric() and ours not in IDS):
        return "number"
    return "date" if dtype.is_temporal() else str(dtype)


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
