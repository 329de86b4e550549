"""String tables: UTF-8 strings as two memory-mapped arrays, and the row of a string.

`X.bytes.npy` holds all strings end to end, `X.offsets.npy` where each begins; a string is
decoded when it is read, so that a table of millions opens at once.

    index = KeyIndex(keys, *sorted_hashes(keys.tolist()))
    index.find(["B00017", "unknown"])                       # array([41, -1])

A bundle maps sorted 64-bit hashes and rows from disk: a million keys take 12 MB, nothing is built
on opening, and a key is found in a few microseconds. `Keys` are the tables of a dataset folder.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from crossbatch.data.dataset.arrays import map_array, offsets_of
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import polars as pl

MAX_CACHED = 1 << 16  # keys, some 10 MB
UNKNOWN = -1


def write_strings(folder: Path, name: str, strings: pl.Series) -> None:
    """Write a series of strings (null = empty) as `name.bytes.npy` and `name.offsets.npy`."""
    filled = strings.fill_null("")
    joined = "".join(filled.to_list()).encode("utf-8")
    np.save(folder / f"{name}.offsets.npy", offsets_of(filled.str.len_bytes().to_numpy()))
    np.save(folder / f"{name}.bytes.npy", np.frombuffer(joined, dtype=np.uint8))


class StringTable:
    """A read-only, memory-mapped list of strings: the two arrays `name` of a folder."""

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


def key_hashes(keys: Sequence[str]) -> np.ndarray:
    """Return a hash of each key that never changes, for bundles store it.  `[n]`, uint64."""
    # a lone surrogate, which JSON or a command line can contain, makes a key that is unknown
    digests = b"".join(
        hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for key in keys
    )
    return np.frombuffer(digests, dtype="<u8")


def sorted_hashes(keys: Sequence[str], *, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of the keys in ascending order, uint64, and the row of each, int32.

    Rows before `first` (the padding of items) are left out.
    """
    hashes = key_hashes(keys)[first:]
    order = np.argsort(hashes, kind="stable")
    return hashes[order], (order + first).astype(np.int32)


class KeyIndex:
    """Finds the rows of keys, which all differ, by what `sorted_hashes` returns for them."""

    def __init__(self, keys: StringTable, hashes: np.ndarray, rows: np.ndarray) -> None:
        self._keys, self._hashes, self._rows = keys, hashes, rows
        self._cache: dict[str, int] = {}  # keys found lately: popular items come again

    def covers(self, first: int) -> bool:
        """Return whether each row from `first` on has a hash, and no other row has one."""
        n, rows = len(self._keys) - first, self._rows
        types = self._hashes.dtype == np.uint64 and np.issubdtype(rows.dtype, np.integer)
        fit = types and self._hashes.shape == rows.shape == (n,)
        return fit and (not n or bool(rows.min() >= first and rows.max() < len(self._keys)))

    def find(self, wanted: Sequence[str]) -> np.ndarray:
        """Return the row of each key, −1 where it is unknown.  `[len(wanted)]`, int64."""
        cache = self._cache
        new = [key for key in wanted if key not in cache]
        if len(cache) + len(new) > MAX_CACHED:
            # A new dictionary, for another thread may be reading the old one.
            cache = self._cache = {}
            new = list(wanted)
        if new:
            cache.update(zip(new, self._search(new).tolist(), strict=True))
        return np.fromiter((cache[key] for key in wanted), np.int64, len(wanted))

    def _search(self, wanted: Sequence[str]) -> np.ndarray:
        hashes = key_hashes(wanted)
        places = np.searchsorted(self._hashes, hashes)
        found = np.full(len(wanted), UNKNOWN, dtype=np.int64)
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
        return UNKNOWN


class Keys:
    """The keys and titles of a dataset folder, `path`."""

    path: Path

    def item_keys(self, ids: Iterable[int]) -> list[str]:
        """Return the items' ids in the source; the padding's is empty."""
        return self._item_keys.take(ids)

    def item_titles(self, ids: Iterable[int]) -> list[str]:
        """Return the items' titles, their keys where there is none."""
        ids = [int(item) for item in ids]
        keys = self.item_keys(ids)
        if self.title_table is None:
            return keys
        titles = self.title_table.take(ids)
        return [title or key for title, key in zip(titles, keys, strict=True)]

    @cached_property
    def title_table(self) -> StringTable | None:
        """The titles as stored, if the source had any."""
        there = (self.path / "item_titles.bytes.npy").is_file()
        return StringTable(self.path, "item_titles") if there else None

    def item_ids(self, keys: Sequence[str]) -> np.ndarray:
        """Return the ids of items by their keys in the source, 0 where unknown.  int64."""
        return self._item_index.find([str(key) for key in keys]).clip(min=0)

    def user_keys(self, ids: Iterable[int]) -> list[str]:
        """Return the users' ids in the source."""
        return self._user_keys.take(ids)

    def user_ids(self, keys: Sequence[str]) -> np.ndarray:
        """Return the ids of users by their keys in the source, −1 where unknown.  int64."""
        return self._user_index.find([str(key) for key in keys])

    @cached_property
    def _item_keys(self) -> StringTable:
        return StringTable(self.path, "item_keys")

    @cached_property
    def _user_keys(self) -> StringTable:
        return StringTable(self.path, "user_keys")

    @cached_property
    def _item_index(self) -> KeyIndex:
        return KeyIndex(self._item_keys, *sorted_hashes(self._item_keys.tolist(), first=1))

    @cached_property
    def _user_index(self) -> KeyIndex:
        return KeyIndex(self._user_keys, *sorted_hashes(self._user_keys.tolist()))
