"""JSON lines as frames: whole blocks by polars, line by line where that fails."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import polars as pl

from crossbatch.data.readers.text_blocks import first_line, line_blocks
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crossbatch.data.readers.source import Tally


def read_json_lines(path: Path, columns: Mapping[str, str], tally: Tally) -> Iterator[pl.DataFrame]:
    """Yield frames with the given columns.

    Args:
        path: A file of one JSON object a line, gzipped or not.
        columns: From our names to the file's.
        tally: Counts the lines that are no JSON objects.

    Raises:
        DataError: If the first object lacks one of the columns.
    """
    first = first_object(path)
    missing = [name for name in columns.values() if name not in first]
    if missing:
        raise DataError(
            f"{path.name} has no field {missing[0]!r}; its fields are: {', '.join(first)}"
        )
    # ids are strings even where they look like numbers: 7 and "7" are one user
    schema = {
        theirs: pl.String if ours in ("user", "item") else _kind(first[theirs])
        for ours, theirs in columns.items()
    }
    renaming = {theirs: ours for ours, theirs in columns.items()}
    for block in line_blocks(path):
        yield parse_block(block, schema, tally).rename(renaming)


def parse_block(
    block: bytes, schema: Mapping[str, pl.DataType | type[pl.DataType]], tally: Tally
) -> pl.DataFrame:
    """Return a block of JSON lines as a frame; broken lines are counted and left out."""
    try:
        return pl.read_ndjson(io.BytesIO(block), schema=dict(schema))
    except pl.exceptions.PolarsError:
        rows = [row for line in block.splitlines() if (row := _parse(line, tally)) is not None]
        columns = {name: [_text(row.get(name)) for row in rows] for name in schema}
        frame = pl.DataFrame(columns, schema=dict.fromkeys(schema, pl.String))
        return frame.select(pl.col(name).cast(kind, strict=False) for name, kind in schema.items())


def first_object(path: Path) -> dict[str, Any]:
    """Return the first line as an object."""
    line = first_line(path)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name} does not begin with a JSON object ({error})") from error
    if not isinstance(value, dict):
        raise DataError(f"{path.name} must hold one JSON object a line, got {line[:60]!r}")
    return value


def _parse(line: bytes, tally: Tally) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        tally.unreadable("line is not UTF-8", repr(line))
        return None
    except (ValueError, RecursionError):
        tally.unreadable("line is not JSON", repr(line))
        return None
    if not isinstance(row, dict):
        tally.unreadable("line is no JSON object", repr(line))
        return None
    return row


def _kind(value: object) -> type[pl.DataType]:
    return (
        pl.Float64 if isinstance(value, (int, float)) and not isinstance(value, bool) else pl.String
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
