"""Ids of items and users in the source, and titles of items."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from crossbatch.data.dataset.string_table import KeyIndex, StringTable, sorted_hashes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy as np


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
