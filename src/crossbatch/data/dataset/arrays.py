"""Arrays on disk (memory-mapped, or read and written in pieces) and ranges of their rows.

Preparation reads and writes in pieces, so that memory holds one piece. Every page of a memory map
that was touched counts as memory of the process: a pass over a mapped log could exceed a limit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from crossbatch.errors import DataError
from crossbatch.files import check_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import DTypeLike


PIECE = 1 << 20  # elements


def map_array(path: Path) -> np.ndarray:
    """Return an array over its memory map; nothing is read, nothing is ever unpickled.

    Raises:
        DataError: If the file is missing, cut short, or no plain array.
    """
    try:
        check_regular(path)
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(mapped, np.memmap):
            raise ValueError("it is an archive")
    except Exception as error:  # a header may provoke anything, from the tokenizer's errors on
        raise DataError(f"{path} cannot be read ({error}): write the folder again") from None
    # a plain array over the same memory: a memmap's own indexing is far slower
    return mapped.view(np.ndarray)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return where each of consecutive ranges begins, and the end of all.  `[n + 1]`, int64."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def range_positions(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return every position in `start:end` of each row, one row after another.

    The second array holds the offsets of each row in the first `[n + 1]`; both are int64.
    """
    offsets = offsets_of(ends - starts)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts), offsets


def user_runs(offsets: np.ndarray, rows: int) -> list[slice]:
    """Cut the users into runs of about `rows` interactions, at most one user's more.

    `offsets` say where each user's interactions begin, and the end of all.  `[num_users + 1]`.
    """
    num_users, total = len(offsets) - 1, int(offsets[-1])
    inner = np.searchsorted(offsets[1:], np.arange(rows, total, rows))
    bounds = np.unique(np.concatenate([[0], inner, [num_users]])).tolist()
    return [slice(first, last) for first, last in pairwise(bounds)]


def range_runs(starts: np.ndarray, ends: np.ndarray, rows: int) -> Iterator[tuple[slice, int, int]]:
    """Cut ascending ranges `start:end` into runs; yield each with the span that holds it.

    The spans have about `rows` elements, at most one range's more.
    """
    if len(starts):
        for run in user_runs(np.append(starts, ends[-1]) - starts[0], rows):
            yield run, int(starts[run.start]), int(ends[run.stop - 1])


class ArrayReader:
    """A `.npy` that is read in slices; its rows are numbers, or `width` numbers each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        header = np.load(path, mmap_mode="r")
        self.dtype, self._length = header.dtype, len(header)
        self.width: int | None = header.shape[1] if header.ndim > 1 else None
        self._start = path.stat().st_size - header.nbytes

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, span: slice) -> np.ndarray:
        start, end, _ = span.indices(self._length)
        width = 1 if self.width is None else self.width
        offset = self._start + start * width * self.dtype.itemsize
        values = np.fromfile(self._path, self.dtype, max(end - start, 0) * width, offset=offset)
        return values if self.width is None else values.reshape(-1, self.width)

    def take(self, positions: np.ndarray) -> np.ndarray:
        """Return the elements at ascending positions.  `[n]`."""
        taken = np.empty(len(positions), self.dtype)
        for first in range(0, self._length, PIECE):
            start, end = np.searchsorted(positions, [first, first + PIECE])
            if start < end:
                taken[start:end] = self[first : first + PIECE][positions[start:end] - first]
        return taken


def take(array: ArrayReader | np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the elements at ascending positions of an array, however it is read.  `[n]`."""
    return array[positions] if isinstance(array, np.ndarray) else array.take(positions)


def pieces(array: ArrayReader | np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Yield an array from its beginning, `rows` elements at a time."""
    for first in range(0, len(array), rows):
        yield array[first : first + rows]


class ArrayWriter:
    """A new `.npy` of `length` rows, little-endian, filled from its beginning.

    Rows are numbers, or `width` numbers each. The length need not be known beforehand.
    """

    def __init__(
        self, path: Path, dtype: DTypeLike, length: int | None, *, width: int | None = None
    ) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._length, self._width, self._written = length, width, 0
        self._file = path.open("wb")
        self._write_header(length or 0)

    def append(self, values: np.ndarray) -> None:
        """Add the next values.  Shape `[n]`, or `[n, width]`."""
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._written += len(values)

    def _write_header(self, length: int) -> None:
        """Write the header, which has room for any length."""
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (length,) if self._width is None else (length, self._width),
        }
        np.lib.format.write_array_header_1_0(self._file, header)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._length is None and kind is None:
            self._length = self._written
            self._file.seek(0)
            self._write_header(self._length)
        self._file.close()
        if kind is None and self._written != self._length:
            raise RuntimeError(f"{self._written} of {self._length} elements were written")


class SumWriter(ArrayWriter):
    """A new `.npy` of the running sums of `count` numbers, from 0 on: one more than these.  int64.

    Of lengths these are offsets: where each range begins, and the end of all.
    """

    def __init__(self, path: Path, count: int) -> None:
        super().__init__(path, np.int64, count + 1)
        self._sum = 0
        super().append(np.zeros(1))

    def append(self, values: np.ndarray) -> None:
        """Add the sums of the next numbers.  Shape `[n]`."""
        sums = self._sum + np.cumsum(values, dtype=np.int64)
        super().append(sums)
        self._sum = int(sums[-1]) if len(sums) else self._sum
