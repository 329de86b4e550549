"""The log as numbers on disk: string ids become codes, 16 bytes an interaction.

Everything after this point (filters, sort, split) reads fixed-size chunks of three flat files, so
that memory is bounded by the number of users and items, never by the number of interactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.prepare.hash_table import EMPTY, HashTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK_ROWS = 1 << 20
DTYPES = (np.int32, np.int32, np.int64)  # of users, items, times


def hashed(keys: pl.Series, seed: int) -> np.ndarray:
    """Return 64-bit hashes; never stored, for they differ between versions of the engine."""
    return keys.hash(seed).to_numpy()


class KeyCodes:
    """Number string keys 0, 1, 2 … in order of first appearance.

    Keys are matched by a 64-bit hash, several times cheaper than by the strings themselves; every
    match is then compared with the stored key, and a collision changes the hash.
    """

    def __init__(self) -> None:
        self.keys = pl.Series("key", [], dtype=pl.String)  # in order of their codes
        self._table, self._seed = HashTable(), 0

    def __len__(self) -> int:
        return len(self.keys)

    def encode(self, keys: pl.Series) -> np.ndarray:
        """Return the code of each key, new keys added.  Shape `[len(keys)]`, int32."""
        hashes = hashed(keys, self._seed)
        codes = self._table.find(hashes)
        unknown = np.flatnonzero(codes == EMPTY)
        if len(unknown):
            first = unknown[pl.Series(hashes[unknown]).arg_unique().to_numpy()]
            numbers = np.arange(len(self), len(self) + len(first), dtype=np.int32)
            self._table.add(hashes[first], numbers)
            fresh = keys.gather(first).alias("key")
            self.keys = pl.concat([self.keys, fresh]).rechunk()
            codes[unknown] = self._table.find(hashes[unknown])
        if (self.keys.gather(codes) == keys).all():
            return codes
        self._seed += 1  # two keys shared a hash: the one that got no number gets one now
        self._table = HashTable()
        self._table.add(hashed(self.keys, self._seed), np.arange(len(self), dtype=np.int32))
        return self.encode(keys)


class LogChunk(NamedTuple):
    """Consecutive interactions: codes and times, in the order of the source."""

    users: np.ndarray  # [n] int32
    items: np.ndarray  # [n] int32
    times: np.ndarray  # [n] int64, microseconds since 1970
    first_row: int  # number of the first interaction in the log


class StagedLog:
    """Interactions as three flat files that are written once and then read in chunks.

    Args:
        folder: An existing folder for the files.
    """

    def __init__(self, folder: Path) -> None:
        self.user_codes, self.item_codes = KeyCodes(), KeyCodes()
        self.user_counts = np.zeros(0, dtype=np.int64)  # interactions of each user code
        self.item_counts = np.zeros(0, dtype=np.int64)  # interactions of each item code
        self.rows = 0
        self._paths = [folder / name for name in ("users.i32", "items.i32", "times.i64")]
        self._files = [path.open("wb") for path in self._paths]

    def append(self, users: pl.Series, items: pl.Series, times: np.ndarray) -> np.ndarray:
        """Add interactions and return their users' codes.

        Args:
            users: Keys without null.  Shape `[n]`.
            items: Keys without null.  Shape `[n]`.
            times: Microseconds.  Shape `[n]`, int64.
        """
        user_codes, item_codes = self.user_codes.encode(users), self.item_codes.encode(items)
        self.user_counts = _counted(self.user_counts, user_codes, len(self.user_codes))
        self.item_counts = _counted(self.item_counts, item_codes, len(self.item_codes))
        arrays = (user_codes, item_codes, times)
        for file, array, dtype in zip(self._files, arrays, DTYPES, strict=True):
            file.write(np.ascontiguousarray(array, dtype=dtype).data)
        self.rows += len(times)
        return user_codes

    def close(self) -> None:
        """Finish writing."""
        for file in self._files:
            file.close()

    def delete(self) -> None:
        """Remove the files, once the sequences are written."""
        self.close()
        for path in self._paths:
            path.unlink()

    def chunks(self) -> Iterator[LogChunk]:
        """Yield the log from its beginning, `CHUNK_ROWS` interactions at a time."""
        for first in range(0, self.rows, CHUNK_ROWS):
            users, items, times = (
                np.fromfile(path, dtype, CHUNK_ROWS, offset=first * np.dtype(dtype).itemsize)
                for path, dtype in zip(self._paths, DTYPES, strict=True)
            )
            yield LogChunk(users, items, times, first)


def _counted(counts: np.ndarray, codes: np.ndarray, size: int) -> np.ndarray:
    """Return the counts with further codes counted in; new codes start at zero.  `[size]`."""
    more = np.bincount(codes, minlength=size)
    more[: len(counts)] += counts
    return more
