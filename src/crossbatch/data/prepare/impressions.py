"""Impressions: items that were shown with the one that was chosen, as a column of the log."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import ArrayWriter, offsets_of, range_positions
from crossbatch.data.prepare.staged_log import KeyCodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crossbatch.data.prepare.event_columns import Append

SEPARATOR = "|"  # of a column of plain strings


class ImpressionColumn:
    """Lists of items, as `shown_items.npy` and `shown_offsets.npy`.

    A list is staged in a file of its own, its length before its codes; what is sorted with the
    interaction is where it begins.

    Args:
        folder: Where lists are staged; it is made when the first one comes.
    """

    name, dtype = "impressions", np.int64

    def __init__(self, folder: Path) -> None:
        self._path, self._end, self._codes = folder / "lists.staged", 0, KeyCodes()
        self._item_ids = np.zeros(0, dtype=np.int32)

    def staged(self, frame: pl.DataFrame) -> np.ndarray:
        """Return where each row's list begins.  `[n]`, int64."""
        column = frame["impressions"]
        if column.dtype != pl.List:
            column = column.cast(pl.String).str.split(SEPARATOR)
        lists = column.cast(pl.List(pl.String)).fill_null([])
        keys = lists.list.explode(empty_as_null=False).fill_null("").str.strip_chars()
        lengths = lists.list.len().to_numpy().astype(np.int64)
        starts = offsets_of(lengths + 1)
        staged = np.empty(starts[-1], dtype=np.int32)
        inside, _ = range_positions(starts[:-1] + 1, starts[1:])
        staged[inside] = self._codes.encode(keys)
        staged[starts[:-1]] = lengths
        with self._path.open("ab") as file:
            file.write(staged.data)
        begin, self._end = self._end, self._end + len(staged)
        return begin + starts[:-1]

    def match(self, item_keys: pl.Series) -> None:
        """Learn the ids of items: `item_keys` are the keys of the items 1, 2 …."""
        ids = pl.int_range(1, len(item_keys) + 1, dtype=pl.Int32, eager=True)
        table = pl.DataFrame({"key": item_keys, "id": ids})
        own = pl.DataFrame({"key": self._codes.keys})
        joined = own.join(table, on="key", how="left", maintain_order="left")
        self._item_ids = joined["id"].fill_null(0).to_numpy()

    @contextmanager
    def writer(self, folder: Path, total: int) -> Iterator[Append]:
        """Write the ids of the shown items, and where those of each interaction begin."""
        staged = np.memmap(self._path, np.int32, "r")
        with (
            ArrayWriter(folder / "shown_items.npy", np.int32, None) as items,
            ArrayWriter(folder / "shown_offsets.npy", np.int64, total + 1) as offsets,
        ):
            last = 0
            offsets.append(np.zeros(1, dtype=np.int64))

            def append(rows: np.ndarray) -> None:
                nonlocal last
                begins = rows["impressions"] + 1
                positions, bounds = range_positions(begins, begins + staged[begins - 1])
                ids = self._item_ids[staged[positions]]
                known = offsets_of(ids > 0)[
                    bounds
                ]  # items that are not in the dataset are left out
                items.append(ids[ids > 0])
                offsets.append(last + known[1:])
                last += int(known[-1])

            yield append
