"""From a staged log to chronological sequences on disk (CSR), by an external sort.

Interactions are written to buckets of neighbouring users that fit in memory, each bucket is sorted
by (user, time, tie rule), and the buckets are appended to the final arrays.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossbatch.data.dataset.arrays import ArrayReader, ArrayWriter, offsets_of, user_runs
from crossbatch.data.prepare.rest import kept_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from crossbatch.data.prepare.numbering import Numbering
    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.prepare.staged_log import LogChunk, StagedLog
    from crossbatch.progress import Progress

BUCKET_ROWS = 1 << 20
ROW = np.dtype([("user", "i4"), ("item", "i4"), ("time", "i8"), ("tie", "u8")])

TIE_RULES = ("shuffle", "stable", "item")  # order of one user's interactions of one moment


PACKED_BITS = 64  # of a number that rows are sorted by


def mix(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Hash numbers to uniform 64-bit values (SplitMix64); the same on every machine.  uint64."""
    start = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64  # in Python: numpy warns of scalar overflow
    state = numbers.astype(np.uint64) + np.uint64(start)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class Written(NamedTuple):
    """The sequences of a dataset's users, which a log is merged into."""

    offsets: np.ndarray  # [num_users + 1] int64
    items: ArrayReader  # int32
    times: ArrayReader  # int64
    columns: Sequence[ArrayReader] = ()  # what was staged of each event column

    def rows(self, run: slice, row: np.dtype) -> np.ndarray:
        """Return the interactions of a run of users as `row`; a tie is the place in the order."""
        run = slice(*run.indices(len(self.offsets) - 1))
        if run.start >= run.stop:
            return np.empty(0, row)
        start, end = int(self.offsets[run.start]), int(self.offsets[run.stop])
        rows = np.empty(end - start, row)
        for name, column in zip(
            (row.names or ())[len(ROW.names or ()) :], self.columns, strict=True
        ):
            rows[name] = column[start:end]
        lengths = np.diff(self.offsets[run.start : run.stop + 1])
        rows["user"] = np.repeat(np.arange(run.start, run.stop), lengths)
        rows["item"], rows["time"] = self.items[start:end], self.times[start:end]
        rows["tie"] = np.arange(start, end)
        return rows


def write_sequences(
    log: StagedLog,
    numbering: Numbering,
    folder: Path,
    options: PrepareOptions,
    progress: Progress,
    written: Written | None = None,
) -> np.ndarray:
    """Write `offsets.npy`, `items.npy` and `times.npy` and return the first.  `[num_users + 1]`.

    The log's event columns write arrays of their own.
    Interactions of `written` sequences are merged in by time; of one moment they come first.
    """
    offsets = offsets_of(numbering.lengths)
    more = ((column.name, column.dtype) for column in log.staged_columns)
    row = np.dtype([*ROW.descr, *more])
    runs = user_runs(offsets, BUCKET_ROWS)
    buckets = [folder / f"bucket-{number}.tmp" for number in range(len(runs))]
    bounds = np.array([run.stop for run in runs])
    tie_keys = _tie_keys(log, options)
    for chunk in log.chunks():
        users, items, keep = numbering.kept(chunk)
        # the shorter the numbers, the faster the sort: of one or two bytes it is a radix sort
        number = np.searchsorted(bounds, users[keep], side="right")
        number = number.astype(np.min_scalar_type(len(buckets)))
        order = np.argsort(number, kind="stable")
        rows = np.empty(len(order), row)
        columns = (users, items, chunk.times, tie_keys(chunk), *chunk.columns.values())
        for name, column in zip(row.names or (), columns, strict=True):
            rows[name] = column[keep][order]
        ends = np.cumsum(np.bincount(number, minlength=len(buckets)))
        for bucket, part in zip(buckets, np.split(rows, ends[:-1]), strict=True):
            _append(bucket, part)
        progress("sorting", chunk.first_row, 2 * log.rows)

    def ordered() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number, (bucket, run) in enumerate(zip(buckets, runs, strict=True), start=1):
            rows = np.fromfile(bucket, row)
            bucket.unlink()
            if written is not None:
                rows = _merged(written.rows(run, row), rows, log, options)
            order = sort_order(rows["user"], rows["time"], rows["tie"])
            if appends:
                rows = rows[order]
                for append in appends:
                    append(rows)
                yield rows["item"], rows["time"]
            else:
                yield rows["item"][order], rows["time"][order]
            progress("sorting", log.rows + log.rows * number // len(buckets), 2 * log.rows)

    total = int(offsets[-1])
    with ExitStack() as stack:
        appends = [stack.enter_context(column.writer(folder, total)) for column in log.columns]
        if options.growing:
            appends.append(stack.enter_context(kept_writer(folder, log.columns, total)))
        save_sequences(folder, offsets, ordered())
    return offsets


def _tie_keys(log: StagedLog, options: PrepareOptions) -> Callable[[LogChunk], np.ndarray]:
    """Return the function that gives what orders ties in a chunk.  `[n]`, uint64."""
    if options.ties == "item":  # by the items' original keys, whatever the order of the log
        ranks = _item_ranks(log)
        return lambda chunk: ranks[chunk.items]
    if options.ties == "stable":  # in the order of the log, as ComiRec
        return lambda chunk: chunk.row_numbers
    return lambda chunk: mix(chunk.row_numbers, options.seed)


def _merged(
    older: np.ndarray, rows: np.ndarray, log: StagedLog, options: PrepareOptions
) -> np.ndarray:
    """Return rows of a dataset and of a log, with ties that put the dataset's first.

    By item key there is one order for both: a dataset's items have the log's first codes.
    """
    if options.ties == "item":
        older["tie"] = _item_ranks(log)[older["item"] - 1]
    else:
        rows["tie"] = (rows["tie"] >> np.uint64(1)) | np.uint64(1 << 63)
    return np.concatenate([older, rows])


def _item_ranks(log: StagedLog) -> np.ndarray:
    """Return the place of each item code in the order of the original keys.  uint64."""
    ranks = np.empty(len(log.item_codes), dtype=np.uint64)
    ranks[log.item_codes.keys.arg_sort().to_numpy()] = np.arange(len(ranks))
    return ranks


def save_sequences(
    folder: Path, offsets: np.ndarray, ordered: Iterable[tuple[np.ndarray, np.ndarray]]
) -> None:
    """Write the arrays of the sequences from ordered pieces (items, times) of any size."""
    np.save(folder / "offsets.npy", offsets)
    total = int(offsets[-1])
    with (
        ArrayWriter(folder / "items.npy", np.int32, total) as items,
        ArrayWriter(folder / "times.npy", np.int64, total) as times,
    ):
        for piece_items, piece_times in ordered:
            items.append(piece_items)
            times.append(piece_times)


def _append(path: Path, rows: np.ndarray) -> None:
    """Add rows to a file, open only meanwhile: a log may have more buckets than open files."""
    with path.open("ab") as file:
        file.write(rows.data)


def sort_order(users: np.ndarray, times: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Return what `np.lexsort((ties, times, users))` does, several times faster.

    User, time and as much of the tie as there is room for are packed into one number; only rows
    that are equal in it, a handful, are compared in full.  Shapes `[n]`.
    """
    if not len(users):
        return np.zeros(0, dtype=np.int64)
    since = _in_coarse_units(times - times.min())
    rows = (users - users.min()).astype(np.uint64)
    width = [int(column.max()).bit_length() for column in (rows, since, ties)]
    room = PACKED_BITS - width[0] - width[1]
    if room < 0:
        return np.lexsort((ties, times, users))
    kept = min(room, width[2])
    packed = (rows << np.uint64(width[1])) | since.astype(np.uint64)
    packed = (packed << np.uint64(kept)) | (ties >> np.uint64(width[2] - kept))
    order = np.argsort(packed)
    packed = packed[order]
    equal = packed[1:] == packed[:-1]
    alike = np.flatnonzero(np.append(equal, False) | np.insert(equal, 0, False))
    inside = order[alike]
    order[alike] = inside[np.lexsort((inside, ties[inside], packed[alike]))]
    return order


def _in_coarse_units(since: np.ndarray) -> np.ndarray:
    """Divide by the unit that all numbers share (seconds, days …): fewer bits say the same."""
    unit = max(int(np.gcd.reduce(since[:10_000])), 1)  # of a sample, for it is slow
    return since // unit if unit > 1 and not (since % unit).any() else since
