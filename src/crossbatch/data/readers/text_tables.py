"""Plain or gzipped text as frames: delimited (CSV, TSV …) and JSON lines.

Text is read in blocks of lines, of which the next is decompressed while one is parsed. Polars
parses whole blocks; one that it refuses is parsed line by line.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, cast

import polars as pl

from crossbatch.errors import DataError
from crossbatch.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from crossbatch.data.readers.source import Tally

BLOCK_BYTES, FIRST_BYTES = 1 << 24, 1 << 20
MAX_LINE_BYTES = 1 << 26
# Text is compressed to a tenth, a very regular log to a hundredth of its size.
MAX_RATIO, ALWAYS_ALLOWED = 250, 1 << 28
GZIP_MAGIC = b"\x1f\x8b"
IDS = ("user", "item")
NUMBERS = ("time", "rating", "weight")


def open_binary(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed if it begins like gzip, whatever its name."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if file.read(2) == GZIP_MAGIC:
        file.close()
        return cast("IO[bytes]", gzip.open(path, "rb"))
    file.seek(0)
    return file


def line_blocks(path: Path) -> Iterator[bytes]:
    """Yield a text file in blocks of whole lines, each ended by a newline.

    A missing file, or one whose compression is broken or cut short, is a `DataError`.
    """
    blocks = _line_blocks(path, BLOCK_BYTES)
    with ThreadPoolExecutor(max_workers=1) as pool:
        coming = pool.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = pool.submit(next, blocks, None)
            yield block


def first_line(path: Path) -> str:
    """Return the first line that is not blank, without its end; empty if there is none."""
    lines = (line for block in _line_blocks(path, FIRST_BYTES) for line in block.split(b"\n"))
    try:
        return next((line for line in lines if line.strip()), b"").decode("utf-8-sig").rstrip("\r")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path.name} is not UTF-8 text ({error.reason} in its first line): convert it"
        ) from error


def _line_blocks(path: Path, block_bytes: int) -> Iterator[bytes]:
    with open_binary(path) as file:
        rest, total, size = b"", 0, path.stat().st_size
        while True:
            try:
                data = file.read(block_bytes)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise DataError(
                    f"{path.name} is damaged or cut short ({error}): fetch the file again, "
                    "`gzip -t` tells whether it is whole"
                ) from error
            if not data:
                break
            total += len(data)
            check_ratio(path.name, total, size)
            data = rest + data
            cut = data.rfind(b"\n") + 1
            rest = data[cut:]
            if len(rest) > MAX_LINE_BYTES:
                longest = f"{MAX_LINE_BYTES >> 20} MB"
                raise DataError(f"{path.name} has a line of more than {longest}: is it text?")
            if cut:
                yield data[:cut]
        if rest:
            yield rest + b"\n"


def check_ratio(name: str, unpacked: int, packed: int) -> None:
    """Raise `DataError` if the sizes are those of a decompression bomb."""
    if unpacked > max(ALWAYS_ALLOWED, MAX_RATIO * packed):
        raise DataError(
            f"{name} unpacks to more than {MAX_RATIO} times its size, like a bomb: if it is "
            "sound, unpack it yourself and pass the result"
        )


def read_delimited(
    path: Path,
    columns: Mapping[str, str],
    tally: Tally,
    *,
    separator: str = ",",
    header: Sequence[str] | None = None,
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
            frame = parse_rows(rows, names, tally, separator=separator)
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


def parse_rows(block: bytes, names: Sequence[str], tally: Tally, *, separator: str) -> pl.DataFrame:
    """Return a block of lines as a frame of strings."""
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
