"""Impressions: items that were shown with the one that was chosen.

They are lists in a column of the log, or come from a second file, which says what was shown in
answer to a request; a column of requests in both joins them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import PIECE, ArrayReader, ArrayWriter, offsets_of, pieces
from crossbatch.data.dataset.string_table import StringTable, write_strings
from crossbatch.data.prepare.rest import FOLDER
from crossbatch.data.prepare.shown_lists import ShownFile, coded_lists, read_lists
from crossbatch.data.prepare.staged_log import KeyCodes
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from crossbatch.data.prepare.event_columns import Append


class ImpressionColumn:
    """Lists of items, as `shown_items.npy` and `shown_offsets.npy`.

    A list is staged in a file of `folder`, its length before its codes; what is sorted with the
    interaction is where it begins. `second_file` gives the frames of a second file, where the log
    has no lists itself.
    """

    name, dtype = "impressions", np.int64

    def __init__(
        self, folder: Path, second_file: Callable[[], Iterator[pl.DataFrame]] | None = None
    ) -> None:
        self._path, self._end, self._codes = folder / "lists.staged", 0, KeyCodes()
        self._second_file = second_file
        self._file: ShownFile | None = None
        self._item_ids = np.zeros(0, dtype=np.int32)

    @property
    def from_second_file(self) -> bool:
        """Whether the lists are found by their requests."""
        return self._second_file is not None

    def staged(self, frame: pl.DataFrame) -> np.ndarray:
        """Return where each row's list begins.  `[n]`, int64."""
        if self._second_file is None:
            lists = coded_lists(frame["impressions"], self._codes)
        else:
            if self._file is None:
                self._file = ShownFile(self._path.parent, self._second_file(), self._codes)
            lists = self._file.find(frame["request"])
        staged, starts = lists.with_lengths()
        with self._path.open("ab") as file:
            file.write(staged.data)
        begin, self._end = self._end, self._end + len(staged)
        return begin + starts[:-1]

    def keep(self, dataset: Path) -> None:
        """Write the lists as they were, items that the dataset lacks included."""
        place = dataset / FOLDER
        write_strings(place, "shown_keys", self._codes.keys)
        with ArrayWriter(place / "shown_lists.npy", np.int32, self._end) as array:
            for first in range(0, self._end, PIECE):
                array.append(np.fromfile(self._path, np.int32, PIECE, offset=4 * first))

    def resume(self, dataset: Path) -> None:
        """Continue the lists of the days before."""
        place = dataset / FOLDER
        keys = StringTable(place, "shown_keys").tolist()
        self._codes.encode(pl.Series(keys, dtype=pl.String))
        lists = ArrayReader(place / "shown_lists.npy")
        with self._path.open("ab") as file:
            for piece in pieces(lists, PIECE):
                file.write(piece.data)
        self._end = len(lists)

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
        with (
            ArrayWriter(folder / "shown_items.npy", np.int32, None) as items,
            ArrayWriter(folder / "shown_offsets.npy", np.int64, total + 1) as offsets,
        ):
            last = 0
            offsets.append(np.zeros(1, dtype=np.int64))

            def append(rows: np.ndarray) -> None:
                nonlocal last
                codes, lengths = read_lists(self._path, rows["impressions"])
                if len(codes) and not 0 <= codes.min() <= codes.max() < len(self._item_ids):
                    raise DataError("impressions are out of range: prepare the dataset again")
                ids = self._item_ids[codes]  # 0 of items that are not in the dataset
                known = offsets_of(ids > 0)[offsets_of(lengths)]
                items.append(ids[ids > 0])
                offsets.append(last + known[1:])
                last += int(known[-1])

            yield append
