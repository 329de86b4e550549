"""Files of tables: their kind by suffix, their columns, and small ones read whole."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from crossbatch.data.readers.delimited import read_whole, split_header
from crossbatch.data.readers.json_lines import first_object
from crossbatch.data.readers.text_blocks import line_blocks
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from crossbatch.data.readers.source import Tally

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
    are what engines leave behind (`_SUCCESS`, `.crc`), not data.
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
    """Tell whether a path is a pattern of paths, such as `lake/day=2024-*/*.parquet`."""
    return glob.has_magic(str(path)) and not path.exists()


def column_names(path: Path) -> list[str]:
    """Return a file's columns without reading it."""
    kind = file_kind(path)
    if kind == "json":
        return list(first_object(path))
    if kind == "parquet":
        return list(parquet_schema(path))
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


def parquet_schema(path: Path) -> pl.Schema:
    """Return the types of a Parquet file's columns by name."""
    return _scan(path).collect_schema()


def _scan(path: Path) -> pl.LazyFrame:
    try:
        frame = pl.scan_parquet(path)
        frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path.name} cannot be read as Parquet: {error}") from error
    return frame
