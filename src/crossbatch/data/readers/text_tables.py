"""Delimited text (CSV, TSV …) and JSON lines as frames.

Polars parses whole blocks of lines; a block that it refuses is parsed line by line.
"""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl

from crossbatch.data.readers.text_blocks import first_line, line_blocks
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from crossbatch.data.readers.source import Tally


IDS = ("user", "item")
NUMBERS = ("time", "rating", "weight")


def read_delimited(
    path: Path,
    columns: Mapping[str, str],
    tally: Tally,
    *,
    separator: str = ",",
    header: Sequence[str] | None = None,
    encoding: str = "utf-8",
) -> Iterator[pl.DataFrame]:
    """Yield frames of strings with the given columns, from our names to the file's.

    A value holds no line break; the separator may be longer than a character, as in `1::2::3`. The
    names are those of the first line unless a `header` is given. The tally counts the lines that
    have too many fields or another encoding.
    """
    names = list(header) if header is not None else split_header(path, separator)
    require_names(path, columns.values(), names, "column")
    chosen = [pl.col(theirs).alias(ours) for ours, theirs in columns.items()]
    skip = 0 if header is not None else 1
    for number, block in enumerate(line_blocks(path)):
        rows = block.split(b"\n", skip)[-1] if number == 0 else block
        if rows.strip():
            frame = parse_rows(rows, names, tally, separator=separator, encoding=encoding)
            yield frame.select(chosen)


def read_whole(
    path: Path, columns: Mapping[str, str], tally: Tally, **options: Any
) -> pl.DataFrame:
    """Return all rows of a small file at once; none for a file with only a header."""
    empty = pl.DataFrame(schema=dict.fromkeys(columns, pl.String))
    return pl.concat([empty, *read_delimited(path, columns, tally, **options)])


def require_names(path: Path, wanted: Iterable[str], names: Collection[str], what: str) -> None:
    """Raise `DataError` unless a file has all the wanted columns or fields."""
    for name in wanted:
        if name not in names:
            known = ", ".join(names)
            raise DataError(f"{path.name} has no {what} {name!r}; its {what}s are: {known}")


def parse_rows(
    block: bytes, names: Sequence[str], tally: Tally, *, separator: str, encoding: str
) -> pl.DataFrame:
    """Return a block of lines as a frame of strings."""
    if encoding != "utf-8":
        block = block.decode(encoding).encode("utf-8")
    mark = separator
    if len(separator) > 1:
        mark = "\x1f"
        block = block.replace(separator.encode(), mark.encode())
    quote = '"' if mark == "," else None  # only CSV has quotes; elsewhere they are plain text
    schema = dict.fromkeys(names, pl.String)
    try:
        frame = pl.read_csv(
            io.BytesIO(block), has_header=False, separator=mark, schema=schema, quote_char=quote
        )
    except pl.exceptions.PolarsError:
        frame = pl.DataFrame(_rows(block, len(names), tally, mark, quote), schema, orient="row")
    blank = pl.all_horizontal(pl.all().is_null())
    return frame.filter(~blank)


def split_header(path: Path, separator: str) -> list[str]:
    """Return the column names of a file's first line."""
    line = first_line(path)
    if not line:
        raise DataError(f"{path.name} is empty")
    try:
        names = _split(line, separator) if len(separator) == 1 else line.split(separator)
    except csv.Error as error:
        raise DataError(f"{path.name} has no header in its first line ({error})") from None
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{path.name} has two columns {repeated[:60]!r}: rename one of them")
    return names


def _rows(
    block: bytes, width: int, tally: Tally, mark: str, quote: str | None
) -> list[list[str | None]]:
    rows: list[list[str | None]] = []
    for line in block.splitlines():
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            tally.unreadable("line is not UTF-8", repr(line))
            continue
        try:
            fields = _split(text, mark) if quote else text.split(mark)
        except csv.Error:
            tally.unreadable("line is not CSV", text)
            continue
        if len(fields) > width:
            tally.unreadable("too many fields", text)
        elif text.strip():
            rows.append([*(field or None for field in fields), *[None] * (width - len(fields))])
    return rows


def _split(line: str, mark: str) -> list[str]:
    return next(csv.reader([line], delimiter=mark))


def read_json_lines(path: Path, columns: Mapping[str, str], tally: Tally) -> Iterator[pl.DataFrame]:
    """Yield frames with the given columns, from our names to those of the first object.

    The tally counts the lines that are no JSON objects.
    """
    first = first_object(path)
    require_names(path, columns.values(), first, "field")
    # ids are strings even where they look like numbers: 7 and "7" are one user
    schema = {theirs: _json_type(ours, first[theirs]) for ours, theirs in columns.items()}
    chosen = [pl.col(theirs).alias(ours) for ours, theirs in columns.items()]
    ids = [theirs for ours, theirs in columns.items() if ours in IDS]
    names = "|".join(re.escape(json.dumps(name)) for name in ids)
    no_id = re.compile(rf"(?:{names})\s*:\s*[\[{{tf]".encode())  # a list, an object, true or false
    for block in line_blocks(path):
        exact = no_id.search(block) is None  # polars would make text of them
        yield parse_block(block, schema, tally, ids, exact=exact).select(chosen)


def _json_type(ours: str, value: Any) -> pl.DataType:
    if ours in IDS:
        return pl.String()
    if isinstance(value, list):
        return pl.List(pl.String)
    return pl.Float64() if ours in NUMBERS and type(value) in (int, float) else pl.String()


def parse_block(
    block: bytes,
    schema: Mapping[str, pl.DataType | type[pl.DataType]],
    tally: Tally,
    ids: Sequence[str],
    *,
    exact: bool,
) -> pl.DataFrame:
    """Return a block of JSON lines as a frame; broken lines are counted and left out.

    The values of `ids` must be text or numbers; `exact` says that this is known.
    """
    try:
        if exact:
            return pl.read_ndjson(io.BytesIO(block), schema=dict(schema))
    except pl.exceptions.PolarsError:
        pass
    rows = [row for line in block.splitlines() if (row := _parse(line, ids, tally)) is not None]
    columns = []
    for name, kind in schema.items():
        values = [row.get(name) for row in rows]
        if kind == pl.List:
            lists = [[str(v) for v in each] if isinstance(each, list) else None for each in values]
            columns.append(pl.Series(name, lists, dtype=pl.List(pl.String)))
        else:
            text = pl.Series(name, [None if v is None else str(v) for v in values], dtype=pl.String)
            columns.append(text.cast(kind, strict=False))
    return pl.DataFrame(columns)


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


def _parse(line: bytes, ids: Sequence[str], tally: Tally) -> dict[str, Any] | None:
    if not line.strip():
        return None
    reason = "line is no JSON object"
    try:
        row = json.loads(line.decode("utf-8"))
        if isinstance(row, dict):
            if not any(isinstance(row.get(name), (list, dict, bool)) for name in ids):
                return row
            reason = "id is a list, an object or a truth value"
    except UnicodeDecodeError:
        reason = "line is not UTF-8"
    except (ValueError, RecursionError):
        reason = "line is not JSON"
    tally.unreadable(reason, repr(line))
    return None
