"""Keys, titles and training counts of a bundle's items, as memory-mapped arrays."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import map_array
from crossbatch.data.dataset.string_table import KeyIndex, StringTable, sorted_hashes, write_strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from crossbatch.data import Dataset

KEYS, TITLES, COUNTS = "item_keys", "item_titles", "item_counts"
HASHES, ROWS = "item_key_hashes", "item_key_rows"


class StoredCatalogue:
    """The items of a bundle folder, with the same methods as a `Dataset` has for its items."""

    def __init__(self, folder: Path) -> None:
        self.item_counts = map_array(folder / f"{COUNTS}.npy")
        self._keys = StringTable(folder, KEYS)
        self._titles = StringTable(folder, TITLES)
        self._index = KeyIndex(
            self._keys, map_array(folder / f"{HASHES}.npy"), map_array(folder / f"{ROWS}.npy")
        )

    @cached_property
    def num_items(self) -> int:
        """Items are 1 … this."""
        return len(self._keys) - 1

    @property
    def is_consistent(self) -> bool:
        """Whether keys, titles, counts and the key index are consistent."""
        counts, n = self.item_counts, self.num_items
        return (
            self._keys.is_valid
            and self._titles.is_valid
            and len(self._titles) == n + 1
            and counts.dtype == np.int64
            and counts.shape == (n + 1,)
            and bool((counts >= 0).all())
            and self._index.covers(first=1)
        )

    def item_ids(self, keys: Sequence[str]) -> np.ndarray:
        """Ids of items by their keys, 0 where unknown; int64."""
        return self._index.find([str(key) for key in keys]).clip(min=0)

    def item_keys(self, ids: Iterable[int]) -> list[str]:
        """Keys of items."""
        return self._keys.take(ids)

    def item_titles(self, ids: Iterable[int]) -> list[str]:
        """Titles of items, their keys where there is none."""
        return [self._titles[int(item)] or self._keys[int(item)] for item in ids]


def write_catalogue(
    folder: Path, keys: Sequence[str], titles: Sequence[str], counts: np.ndarray
) -> None:
    """Write what `StoredCatalogue` reads.

    Args:
        folder: The bundle that is being made.
        keys: Of items 0 … N; row 0 is padding.
        titles: Likewise; empty where there is none.
        counts: Likewise.
    """
    write_strings(folder, KEYS, pl.Series(keys, dtype=pl.String))
    write_strings(folder, TITLES, pl.Series(titles, dtype=pl.String))
    np.save(folder / f"{COUNTS}.npy", np.asarray(counts, dtype=np.int64))
    hashes, rows = sorted_hashes(keys, first=1)
    np.save(folder / f"{HASHES}.npy", hashes)
    np.save(folder / f"{ROWS}.npy", rows)


def all_items(catalogue: Dataset | StoredCatalogue) -> tuple[list[str], list[str]]:
    """Keys and titles of items 0 … N; a title that is only the key is left empty."""
    ids = range(catalogue.num_items + 1)
    keys, titles = catalogue.item_keys(ids), catalogue.item_titles(ids)
    return keys, [title if title != key else "" for key, title in zip(keys, titles, strict=True)]
