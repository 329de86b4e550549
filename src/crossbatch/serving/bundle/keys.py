"""From item keys to ids without a dictionary: sorted 64-bit hashes, mapped from disk.

A million keys take 12 MB, nothing is built on opening, and a key is found in a few microseconds.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.data.dataset.string_table import StringTable


MAX_REMEMBERED = 1 << 16  # keys, some 10 MB


def key_hashes(keys: Sequence[str]) -> np.ndarray:
    """Return a hash of each key that is the same everywhere and for ever.  `[n]`, uint64."""
    digests = b"".join(_digest(key) for key in keys)
    return np.frombuffer(digests, dtype="<u8")


def _digest(key: str) -> bytes:
    # a lone surrogate, which JSON can bring along, is a key like any other: it is just unknown
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def sorted_hashes(keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of keys 1 … n in ascending order, and the row of each.

    Args:
        keys: All keys; row 0 is padding and left out.
    """
    hashes = key_hashes(keys)[1:]
    order = np.argsort(hashes, kind="stable")
    return hashes[order], (order + 1).astype(np.int32)


class KeyIndex:
    """Finds the rows of keys.

    Args:
        keys: The table that is searched.
        hashes: Ascending, uint64 `[n]`.
        rows: Row of each hash, int32 `[n]`.
    """

    def __init__(self, keys: StringTable, hashes: np.ndarray, rows: np.ndarray) -> None:
        self._keys, self._hashes, self._rows = keys, hashes, rows
        self._remembered: dict[str, int] = {}  # keys asked for lately: popular items come again

    @property
    def is_sound(self) -> bool:
        """Whether every hash has a row, and every row is one of the table."""
        n, rows = len(self._keys) - 1, self._rows
        types = self._hashes.dtype == np.uint64 and np.issubdtype(rows.dtype, np.integer)
        fit = types and self._hashes.shape == rows.shape == (n,)
        return fit and (not n or bool(rows.min() > 0 and rows.max() <= n))

    def find(self, wanted: Sequence[str]) -> np.ndarray:
        """Return the row of each key, 0 where it is unknown.  `[len(wanted)]`, int64."""
        remembered = self._remembered
        new = [key for key in wanted if key not in remembered]
        if len(remembered) + len(new) > MAX_REMEMBERED:
            # A fresh dictionary, for another thread may be reading the old one.
            remembered = self._remembered = {}
            new = list(wanted)
        if new:
            remembered.update(zip(new, self._search(new).tolist(), strict=True))
        return np.fromiter((remembered[key] for key in wanted), np.int64, len(wanted))

    def _search(self, wanted: Sequence[str]) -> np.ndarray:
        hashes = key_hashes(wanted)
        places = np.searchsorted(self._hashes, hashes)
        found = np.zeros(len(wanted), dtype=np.int64)
        inside = np.flatnonzero(places < len(self._hashes))
        hits = inside[self._hashes[places[inside]] == hashes[inside]]
        for position in hits.tolist():
            found[position] = self._confirm(wanted[position], int(places[position]))
        return found

    def _confirm(self, key: str, place: int) -> int:
        """Compare the strings themselves: two keys may share a hash."""
        shared = self._hashes[place]
        while place < len(self._hashes) and self._hashes[place] == shared:
            row = int(self._rows[place])
            if self._keys[row] == key:
                return row
            place += 1
        return 0
