"""From a staged log to chronological sequences on disk (CSR), by an external sort.

Interactions are dealt to buckets of neighbouring users that fit in memory, each bucket is sorted
by (user, time, tie rule), and the buckets are appended to the final arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import numpy as np
import polars as pl

from crossbatch.data.arrays import ArrayWriter

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.data.progress import Progress
    from crossbatch.data.staging import LogChunk, StagedLog

BUCKET_ROWS = 4_000_000
ROW = np.dtype([("user", "<i4"), ("item", "<i4"), ("time", "<i8"), ("tie", "<u8")])

TieRule = Callable[["LogChunk", int, np.ndarray], np.ndarray]
"""`rule(chunk, seed, key_ranks [I])`: what orders interactions of one user and time.  uint64."""


def shuffled(chunk: LogChunk, seed: int, key_ranks: np.ndarray) -> np.ndarray:
    """Order ties at random: a hash of the seed and the interaction's number in the log."""
    rows = np.arange(chunk.first_row, chunk.first_row + len(chunk.users), dtype=np.uint64)
    return mix(rows, seed)


def stable(chunk: LogChunk, seed: int, key_ranks: np.ndarray) -> np.ndarray:
    """Keep ties in the order of the log, as ComiRec does."""
    return np.arange(chunk.first_row, chunk.first_row + len(chunk.users), dtype=np.uint64)


def by_item(chunk: LogChunk, seed: int, key_ranks: np.ndarray) -> np.ndarray:
    """Order ties by the items' original keys, whatever the order of the log."""
    ranks: np.ndarray = key_ranks[chunk.items].astype(np.uint64)
    return ranks


TIE_RULES: dict[str, TieRule] = {"shuffle": shuffled, "stable": stable, "item": by_item}


def mix(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Hash numbers to uniform 64-bit values (SplitMix64); the same on every machine.  uint64."""
    start = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64  # in Python: numpy warns of scalar overflow
    state = numbers.astype(np.uint64) + np.uint64(start)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Numbering:
    """Final numbers of users and items.

    Attributes:
        users: Row of each user code in the dataset, −1 if dropped.  Shape `[U]`, int64.
        items: Id of each item code from 1, 0 if dropped.  Shape `[I]`, int32.
        lengths: Sequence length of each user row.  Shape `[num_users]`, int64.
        withheld: Items that users before `withheld_before` may not have.  `[num_items + 1]`, bool.
        withheld_before: The rows of users to whom `withheld` applies.
    """

    users: np.ndarray
    items: np.ndarray
    lengths: np.ndarray
    withheld: np.ndarray
    withheld_before: int = 0

    def kept(self, chunk: LogChunk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return user rows, item ids and the mask of the chunk's kept interactions."""
        users, items = self.users[chunk.users], self.items[chunk.items]
        keep = (users >= 0) & (items > 0)
        if self.withheld_before:
            keep &= ~(self.withheld[items] & (users < self.withheld_before))
        return users, items, keep


def write_sequences(
    log: StagedLog,
    numbering: Numbering,
    folder: Path,
    *,
    ties: str,
    seed: int,
    key_ranks: np.ndarray,
    progress: Progress,
) -> np.ndarray:
    """Write `offsets.npy`, `items.npy` and `times.npy` and return the first.  `[num_users + 1]`."""
    offsets = np.zeros(len(numbering.lengths) + 1, dtype=np.int64)
    np.cumsum(numbering.lengths, out=offsets[1:])
    np.save(folder / "offsets.npy", offsets)
    total = int(offsets[-1])
    bounds = _bucket_bounds(offsets)
    paths = [folder / f"bucket-{bucket}.tmp" for bucket in range(len(bounds) - 1)]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for chunk in log.chunks():
            tie = TIE_RULES[ties](chunk, seed, key_ranks)
            _deal(chunk, tie, numbering, bounds, files)
            progress("sorting", chunk.first_row, 2 * log.rows)
    with ExitStack() as stack:
        items = stack.enter_context(ArrayWriter(folder / "items.npy", np.int32, total))
        times = stack.enter_context(ArrayWriter(folder / "times.npy", np.int64, total))
        for bucket, path in enumerate(paths):
            rows = _sorted_rows(np.fromfile(path, ROW))
            items.append(rows["item"].to_numpy())
            times.append(rows["time"].to_numpy())
            path.unlink()
            progress("sorting", log.rows + int(log.rows * (bucket + 1) / len(paths)), 2 * log.rows)
    return offsets


def _bucket_bounds(offsets: np.ndarray) -> np.ndarray:
    """Cut the users into runs of about `BUCKET_ROWS` interactions.  First rows and the end."""
    num_users, total = len(offsets) - 1, int(offsets[-1])
    marks = np.arange(BUCKET_ROWS, total, BUCKET_ROWS)
    inner = np.searchsorted(offsets, marks)
    return np.unique(np.concatenate([[0], inner, [num_users]]))


def _deal(
    chunk: LogChunk,
    tie: np.ndarray,
    numbering: Numbering,
    bounds: np.ndarray,
    files: Sequence[IO[bytes]],
) -> None:
    users, items, keep = numbering.kept(chunk)
    rows = np.empty(int(keep.sum()), dtype=ROW)
    rows["user"], rows["item"] = users[keep], items[keep]
    rows["time"], rows["tie"] = chunk.times[keep], tie[keep]
    if len(files) == 1:
        files[0].write(rows.data)
        return
    buckets = np.searchsorted(bounds, rows["user"], side="right") - 1
    for bucket, file in enumerate(files):
        file.write(rows[buckets == bucket].data)


def _sorted_rows(rows: np.ndarray) -> pl.DataFrame:
    frame = pl.DataFrame({name: np.ascontiguousarray(rows[name]) for name in ROW.names or ()})
    return frame.sort("user", "time", "tie", maintain_order=True)
