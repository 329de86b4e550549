"""A hash table of 64-bit hashes in plain arrays: millions of look-ups a second, no Python objects.

Open addressing with linear probing; all keys of a call probe together.
"""

from __future__ import annotations

import numpy as np

SPARSE = 4  # slots for each entry, at least: most hashes are found at the first probe
EMPTY = -1


class HashTable:
    """From hashes to the numbers under which they were added."""

    def __init__(self) -> None:
        self._size = 0
        self._clear(1 << 10)

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
        if SPARSE * (self._size + len(hashes)) > len(self._numbers):
            self._grow(self._size + len(hashes))
        self._size += len(hashes)
        slots = (hashes & self._mask).astype(np.int64)
        waiting = np.arange(len(hashes))
        while len(waiting):
            free = waiting[self._numbers[slots[waiting]] == EMPTY]
            self._numbers[slots[free]] = numbers[free]  # of those that want one slot the last wins
            won = free[self._numbers[slots[free]] == numbers[free]]
            self._hashes[slots[won]] = hashes[won]
            waiting = np.setdiff1d(waiting, won, assume_unique=True)
            slots[waiting] = (slots[waiting] + 1) & int(self._mask)

    def _grow(self, entries: int) -> None:
        used = np.flatnonzero(self._numbers != EMPTY)
        hashes, numbers = self._hashes[used], self._numbers[used]
        self._clear(1 << (2 * SPARSE * entries - 1).bit_length())
        self._size = 0
        self.add(hashes, numbers)

    def _clear(self, slots: int) -> None:
        self._mask = np.uint64(slots - 1)
        self._hashes = np.zeros(slots, dtype=np.uint64)
        self._numbers = np.full(slots, EMPTY, dtype=np.int32)
