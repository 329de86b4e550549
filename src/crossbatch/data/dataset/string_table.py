"""String tables: any number of UTF-8 strings as two memory-mapped arrays.

`X.bytes.npy` holds all strings end to end, `X.offsets.npy` where each begins; a string is
decoded when it is read, so that a table of millions opens at once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np

from crossbatch.data.dataset.arrays import map_array
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import polars as pl


def write_strings(folder: Path, name: str, strings: pl.Series) -> None:
    """Write a series of strings (null = empty) as `name.bytes.npy` and `name.offsets.npy`."""
    filled = strings.fill_null("")
    lengths = filled.str.len_bytes().to_numpy().astype(np.int64)
    offsets = np.zeros(len(filled) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    joined = "".join(filled.to_list()).encode("utf-8")
    np.save(folder / f"{name}.offsets.npy", offsets)
    np.save(folder / f"{name}.bytes.npy", np.frombuffer(joined, dtype=np.uint8))


class StringTable:
    """A read-only, memory-mapped list of strings.

    Args:
        folder: Where the two arrays are.
        name: Their common name.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._offsets = map_array(folder / f"{name}.offsets.npy")
        self._bytes = map_array(folder / f"{name}.bytes.npy")
        plain = self._bytes.dtype == np.uint8 and self._offsets.dtype == np.int64
        if not plain or self._bytes.ndim != 1 or self._offsets.ndim != 1 or not len(self._offsets):
            raise DataError(f"{folder / name} is no table of strings: write the folder again")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:
        if not 0 <= row < len(self):
            raise IndexError(f"row must be in 0..{len(self) - 1}, got {row}")
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        return str(self._bytes[start:end].tobytes(), "utf-8", "replace")

    def take(self, rows: Iterable[int]) -> list[str]:
        """Return the strings of the given rows."""
        return [self[int(row)] for row in rows]

    def tolist(self) -> list[str]:
        """Return every string; one decoding of the whole table."""
        whole, ends = self._bytes.tobytes(), self._offsets.tolist()
        return [whole[start:end].decode("utf-8", "replace") for start, end in pairwise(ends)]

    @property
    def is_valid(self) -> bool:
        """Whether every string lies inside the bytes, after the one before."""
        ascending = bool((np.diff(self._offsets) >= 0).all())
        return ascending and self._offsets[0] == 0 and self._offsets[-1] == len(self._bytes)


def byte_order(strings: pl.Series) -> np.ndarray:
    """Return the rows of `strings` in ascending order of their UTF-8 bytes.  int64."""
    return cast("np.ndarray", strings.fill_null("").arg_sort().to_numpy().astype(np.int64))
