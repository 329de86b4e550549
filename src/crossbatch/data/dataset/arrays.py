"""Arrays on disk: mapped as a whole, or written and read piece by piece.

Read and written in pieces, plainly, memory stays that of one piece. Of a map every page that was
ever touched counts as the process's own memory, so that a pass over the log would look like holding
it, and meet a limit as if it did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import DTypeLike


def map_array(path: Path) -> np.ndarray:
    """Return an array over its memory map; nothing is read, nothing is ever unpickled.

    Raises:
        DataError: If the file is missing, cut short, or no plain array.
    """
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(mapped, np.memmap):
            raise ValueError("it is an archive")
    except Exception as error:  # a header may provoke anything, from the tokenizer's errors on
        raise DataError(f"{path} cannot be read ({error}): write the folder again") from None
    # a plain array over the same memory: a memmap's own indexing is far slower
    return mapped.view(np.ndarray)


def user_runs(offsets: np.ndarray, rows: int) -> np.ndarray:
    """Cut the users into runs of about `rows` interactions.

    Args:
        offsets: Where each user's interactions begin, and the end of all.  Shape `[num_users + 1]`.
        rows: Interactions of a run; more only by those of its last user.

    Returns:
        The first user of each run, and the end of all.
    """
    num_users, total = len(offsets) - 1, int(offsets[-1])
    inner = np.searchsorted(offsets, np.arange(rows, total, rows))
    return np.unique(np.concatenate([[0], inner, [num_users]]))


class ArrayReader:
    """A one-dimensional `.npy` of which slices are read when they are asked for.

    Args:
        path: An existing file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        header = np.load(path, mmap_mode="r")
        self._dtype, self._length = header.dtype, len(header)
        self._start = path.stat().st_size - header.nbytes

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, span: slice) -> np.ndarray:
        start, end, _ = span.indices(self._length)
        offset = self._start + start * self._dtype.itemsize
        return np.fromfile(self._path, self._dtype, max(end - start, 0), offset=offset)


def pieces(array: ArrayReader | np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Yield an array from its beginning, `rows` elements at a time."""
    for first in range(0, len(array), rows):
        yield array[first : first + rows]


class ArrayWriter:
    """A one-dimensional `.npy` of known length, filled from its beginning.

    Args:
        path: The file to create.
        dtype: Type of the elements; written little-endian.
        length: How many elements will be appended in all.
    """

    def __init__(self, path: Path, dtype: DTypeLike, length: int) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._length, self._written = length, 0
        self._file = path.open("wb")
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (length,),
        }
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: np.ndarray) -> None:
        """Add the next values.  Shape `[n]`."""
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._written += len(values)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is None and self._written != self._length:
            raise RuntimeError(f"{self._written} of {self._length} elements were written")
