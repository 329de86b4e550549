"""Blocks of lines of plain or gzipped text; the next is decompressed while one is parsed."""

from __future__ import annotations

import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, cast

from crossbatch.errors import DataError
from crossbatch.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK_BYTES, FIRST_BYTES = 1 << 24, 1 << 20
MAX_LINE_BYTES = 1 << 26
# Text is compressed to a tenth, a very regular log to a hundredth of its size.
MAX_RATIO, ALWAYS_ALLOWED = 250, 1 << 28
GZIP_MAGIC = b"\x1f\x8b"


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
