"""Impressions: items that were shown with the one that was chosen.

They are lists in a column of the log, or come from a second file, which says what was shown in
answer to a request; a column of requests in both joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import (
    PIECE,
    ArrayReader,
    ArrayWriter,
    SumWriter,
    offsets_of,
    pieces,
    range_positions,
)
from crossbatch.data.dataset.string_table import StringTable, write_strings
from crossbatch.data.prepare.event_columns import Append, Carried, EventColumn
from crossbatch.data.prepare.rest import FOLDER
from crossbatch.data.prepare.staged_log import KeyCodes
from crossbatch.errors import DataError

BUCKET_BITS = 6  # of the hashes of requests, which are sorted in buckets that fit in memory
ENTRY = np.dtype([("request", "u8"), ("begin", "i8")])


class Lists(NamedTuple):
    """Lists of codes, end to end."""

    codes: np.ndarray  # [sum of the lengths] int32
    lengths: np.ndarray  # [n] int64

    def with_lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each list after its length, int32, and where each begins.  `[n + 1]`, int64."""
        starts = offsets_of(self.lengths + 1)
        staged = np.empty(starts[-1], dtype=np.int32)
        staged[range_positions(starts[:-1] + 1, starts[1:])[0]] = self.codes
        staged[starts[:-1]] = self.lengths
        return staged, starts


def coded_lists(lists: pl.Series, codes: KeyCodes) -> Lists:
    """Return lists of keys as codes."""
    keys = lists.list.explode(empty_as_null=False).fill_null("").str.strip_chars()
    return Lists(codes.encode(keys), lists.list.len().to_numpy().astype(np.int64))


class ShownFile:
    """The lists of a second file, staged in `folder`, with an index of their requests.

    `frames` have columns `request` and `impressions`; a request may have several rows.
    """

    def __init__(self, folder: Path, frames: Iterator[pl.DataFrame], codes: KeyCodes) -> None:
        self._lists, self._index = folder / "shown.staged", folder / "requests.staged"
        buckets = [folder / f"requests-{number}.staged" for number in range(1 << BUCKET_BITS)]
        end = 0
        with self._lists.open("wb") as file:
            for frame in frames:
                frame = frame.filter(pl.col("request").is_not_null())
                lists, _ = Carried("impressions", "list").values(frame)
                staged, starts = coded_lists(lists, codes).with_lengths()
                file.write(staged.data)
                entries = np.empty(len(frame), ENTRY)
                entries["request"] = _hashes(frame["request"])
                entries["begin"] = end + starts[:-1]
                end += len(staged)
                numbers = _bucket(entries["request"])
                for number in np.unique(numbers).tolist():
                    with buckets[number].open("ab") as part:
                        part.write(entries[numbers == number].data)
        sizes = []
        with self._index.open("wb") as file:
            for bucket in buckets:
                entries = np.fromfile(bucket, ENTRY) if bucket.exists() else np.empty(0, ENTRY)
                file.write(entries[np.argsort(entries["request"], kind="stable")].data)
                bucket.unlink(missing_ok=True)
                sizes.append(len(entries))
        self._bounds = offsets_of(np.array(sizes))

    def find(self, requests: pl.Series) -> Lists:
        """Return the lists of requests; empty where the file has none.  `[n]`."""
        hashes, there = _hashes(requests), requests.is_not_null().to_numpy()
        order = np.argsort(hashes, kind="stable")
        found: list[np.ndarray] = []
        counts = np.zeros(len(requests), dtype=np.int64)  # rows of the file of each request
        numbers = _bucket(hashes[order])
        for number in np.unique(numbers).tolist():
            size = int(self._bounds[number + 1] - self._bounds[number])
            offset = int(self._bounds[number]) * ENTRY.itemsize
            entries = np.fromfile(self._index, ENTRY, size, offset=offset)
            rows = order[numbers == number]
            first = np.searchsorted(entries["request"], hashes[rows])
            last = np.searchsorted(entries["request"], hashes[rows], side="right")
            last = np.where(there[rows], last, first)
            counts[rows] = last - first
            found.append(entries["begin"][range_positions(first, last)[0]])
        begins = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
        # `begins` are those of the rows in the order of their hashes: back to that of the rows
        starts = np.empty(len(requests), dtype=np.int64)
        starts[order] = offsets_of(counts[order])[:-1]
        places, bounds = range_positions(starts, starts + counts)
        codes, lengths = read_lists(self._lists, begins[places])
        return Lists(codes, np.diff(offsets_of(lengths)[bounds]))


def read_lists(path: Path, begins: np.ndarray) -> Lists:
    """Read lists, each after its length, from where they begin.  `[n]`."""
    if not path.stat().st_size or not len(begins):
        return Lists(np.zeros(0, dtype=np.int32), np.zeros(len(begins), dtype=np.int64))
    staged = np.memmap(path, np.int32, "r")
    lengths = staged[np.clip(begins, 0, len(staged) - 1)].astype(np.int64)
    if begins.min() < 0 or lengths.min() < 0 or (begins + lengths).max() >= len(staged):
        raise DataError("the kept impressions contradict each other: prepare the dataset again")
    positions, _ = range_positions(begins + 1, begins + 1 + lengths)
    return Lists(np.asarray(staged[positions]), lengths)


def _hashes(requests: pl.Series) -> np.ndarray:
    return requests.cast(pl.String).str.strip_chars().hash(seed=0).to_numpy()


def _bucket(hashes: np.ndarray) -> np.ndarray:
    return (hashes >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)


class ImpressionColumn(EventColumn):
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
        from_log = Carried("impressions", "list")
        self.carried = from_log if second_file is None else Carried("request", "key")
        self._file: ShownFile | None = None
        self._item_ids = np.zeros(0, dtype=np.int32)

    def numbers(self, values: pl.Series) -> np.ndarray:
        """Return where each row's list begins.  `[n]`, int64."""
        if self._second_file is None:
            lists = coded_lists(values, self._codes)
        else:
            if self._file is None:
                self._file = ShownFile(self._path.parent, self._second_file(), self._codes)
            lists = self._file.find(values)
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
            SumWriter(folder / "shown_offsets.npy", total) as offsets,
        ):

            def append(rows: np.ndarray) -> None:
                codes, lengths = read_lists(self._path, rows["impressions"])
                if len(codes) and not 0 <= codes.min() <= codes.max() < len(self._item_ids):
                    raise DataError("impressions are out of range: prepare the dataset again")
                ids = self._item_ids[codes]  # 0 of items that are not in the dataset
                items.append(ids[ids > 0])
                offsets.append(np.diff(offsets_of(ids > 0)[offsets_of(lengths)]))

            yield append
