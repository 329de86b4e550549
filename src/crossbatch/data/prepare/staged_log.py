"""The log as numbers on disk: string ids become integer codes, 16 bytes an interaction.

Every later stage reads chunks of three flat files, so that memory is bounded by the number of users
and items, not by the number of interactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK_ROWS = 1 << 20
DTYPES = (np.int32, np.int32, np.int64)  # of users, items, times
SLOTS_PER_ENTRY = 4  # at least: most hashes are found at the first probe
EMPTY = -1


class HashTable:
    """From 64-bit hashes to numbers, in plain arrays: millions of look-ups a second.

    Open addressing with linear probing; all hashes of a call probe together.
    """

    def __init__(self) -> None:
        self._size = 0
        self._allocate(1 << 10)

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Return the number of each hash, −1 where it is not in the table.

        Args:
            hashes: Shape `[n]`, uint64.

        Returns:
            Shape `[n]`, int32.
        """
        slots = (hashes & self._mask).astype(np.int64)
        numbers = self._numbers[slots]
        probing = np.flatnonzero((self._hashes[slots] != hashes) & (numbers != EMPTY))
        while len(probing):
            slots[probing] = (slots[probing] + 1) & int(self._mask)
            at = slots[probing]
            numbers[probing] = self._numbers[at]
            passed = (self._hashes[at] != hashes[probing]) & (numbers[probing] != EMPTY)
            probing = probing[passed]
        return numbers

    def add(self, hashes: np.ndarray, numbers: np.ndarray) -> None:
        """Add hashes that are not in the table.

        Args:
            hashes: Shape `[n]`, uint64.
            numbers: All different.  Shape `[n]`, int32.
        """
        if SLOTS_PER_ENTRY * (self._size + len(hashes)) > len(self._numbers):
            self._grow(self._size + len(hashes))
        self._size += len(hashes)
        slots = (hashes & self._mask).astype(np.int64)
        waiting = np.arange(len(hashes))
        while len(waiting):
            free = waiting[self._numbers[slots[waiting]] == EMPTY]
            self._numbers[slots[free]] = numbers[free]  # the last of those that want one slot wins
            won = free[self._numbers[slots[free]] == numbers[free]]
            self._hashes[slots[won]] = hashes[won]
            waiting = np.setdiff1d(waiting, won, assume_unique=True)
            slots[waiting] = (slots[waiting] + 1) & int(self._mask)

    def _grow(self, entries: int) -> None:
        used = np.flatnonzero(self._numbers != EMPTY)
        hashes, numbers = self._hashes[used], self._numbers[used]
        self._allocate(1 << (2 * SLOTS_PER_ENTRY * entries - 1).bit_length())
        self._size = 0
        self.add(hashes, numbers)

    def _allocate(self, slots: int) -> None:
        self._mask = np.uint64(slots - 1)
        self._hashes = np.zeros(slots, dtype=np.uint64)
        self._numbers = np.full(slots, EMPTY, dtype=np.int32)


def hashed(keys: pl.Series, seed: int) -> np.ndarray:
    """Return 64-bit hashes; they differ between versions of polars, so they are never stored."""
    return keys.hash(seed).to_numpy()


class KeyCodes:
    """Number string keys 0, 1, 2 … in order of first appearance.

    Keys are matched by a 64-bit hash, several times faster than by the strings; every match is
    then compared with the stored key, and a collision changes the hash function.
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
            new = keys.gather(first).alias("key")
            self.keys = pl.concat([self.keys, new]).rechunk()
            codes[unknown] = self._table.find(hashes[unknown])
        if (self.keys.gather(codes) == keys).all():
            return codes
        self._seed += 1  # two keys shared a hash: the one without a number gets one now
        self._table = HashTable()
        self._table.add(hashed(self.keys, self._seed), np.arange(len(self), dtype=np.int32))
        return self.encode(keys)


class LogChunk(NamedTuple):
    """Consecutive interactions: codes and times, in the order of the source."""

    users: np.ndarray  # [n] int32
    items: np.ndarray  # [n] int32
    times: np.ndarray  # [n] int64, microseconds since 1970
    first_row: int  # number of the first interaction in the log

    @property
    def row_numbers(self) -> np.ndarray:
        """Number of each interaction in the log.  `[n]`, uint64."""
        return np.arange(self.first_row, self.first_row + len(self.users), dtype=np.uint64)


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

    def chunks(self) -> Iterator[LogChunk]:
        """Yield the log from its beginning, `CHUNK_ROWS` interactions at a time."""
        for first in range(0, self.rows, CHUNK_ROWS):
            users, items, times = (
                np.fromfile(path, dtype, CHUNK_ROWS, offset=first * np.dtype(dtype).itemsize)
                for path, dtype in zip(self._paths, DTYPES, strict=True)
            )
            yield LogChunk(users, items, times, first)


def _counted(counts: np.ndarray, codes: np.ndarray, size: int) -> np.ndarray:
    """Return the counts with further codes added; new codes start at zero.  `[size]`."""
    more = np.bincount(codes, minlength=size)
    more[: len(counts)] += counts
    return more
