"""What a dataset that days are added to keeps for them.

An item of four interactions may get its fifth tomorrow.  `append` then needs the first four, and
the log that they came from is not read again.  Nor is it for weights, sessions, impressions and
context: the numbers that were staged of them are kept, those of all interactions of the dataset in
the order of its sequences (`kept/`), and those of the interactions that were left out.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import ArrayReader, ArrayWriter, map_array
from crossbatch.data.dataset.string_table import StringTable, write_strings
from crossbatch.errors import DataError
from crossbatch.files import read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from crossbatch.data.prepare.event_columns import Append, EventColumn
    from crossbatch.data.prepare.numbering import Numbering
    from crossbatch.data.prepare.staged_log import KeyCodes, StagedLog

FOLDER = "rest"
KEPT = f"{FOLDER}/kept"
COLUMNS = f"{FOLDER}/columns.json"


class Rest(NamedTuple):
    """Interactions in the order of their log."""

    users: pl.Series  # [n] original keys
    items: pl.Series  # [n] original keys
    times: np.ndarray  # [n] int64, microseconds
    columns: tuple[np.ndarray, ...]  # [n] what was staged of each event column


@contextmanager
def kept_writer(dataset: Path, columns: Sequence[EventColumn], total: int) -> Iterator[Append]:
    """Write the staged numbers of a dataset's interactions, in the order of its sequences."""
    (dataset / KEPT).mkdir(parents=True)
    dtypes = {column.name: column.dtype for column in columns if column.dtype is not None}
    with _writers(dataset / KEPT, dtypes, total) as arrays:

        def append(rows: np.ndarray) -> None:
            for name, array in arrays.items():
                array.append(rows[name])

        yield append


@contextmanager
def _writers(
    place: Path, dtypes: Mapping[str, Any], total: int
) -> Iterator[dict[str, ArrayWriter]]:
    """Open new arrays of a folder by their names, `[total]` each."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(ArrayWriter(place / f"{name}.npy", dtype, total))
            for name, dtype in dtypes.items()
        }


def kept_columns(dataset: Path, columns: Sequence[EventColumn], total: int) -> list[ArrayReader]:
    """Open what `kept_writer` wrote; a `DataError` if an array does not fit the interactions."""
    readers = []
    for column in columns:
        path = dataset / KEPT / f"{column.name}.npy"
        array = map_array(path)
        if array.shape != (total,) or array.dtype != column.dtype:
            raise DataError(f"{path} does not fit the dataset: prepare it again")
        readers.append(ArrayReader(path))
    return readers


def write_rest(
    dataset: Path, log: StagedLog, numbering: Numbering, described: dict[str, Any]
) -> None:
    """Write the interactions of a log that were not kept, their keys once each.

    `described` are the event columns of the log, which those of further days must equal.
    """
    place = dataset / FOLDER
    place.mkdir(exist_ok=True)
    write_document(dataset / COLUMNS, described)
    for column in log.columns:
        column.keep(dataset)
    used_users = np.zeros(len(log.user_codes), dtype=bool)
    used_items = np.zeros(len(log.item_codes), dtype=bool)
    total = 0
    for chunk in log.chunks():
        left = ~numbering.kept(chunk)[2]
        used_users[chunk.users[left]] = used_items[chunk.items[left]] = True
        total += int(left.sum())
    user_rows = _write_keys(place, "user_keys", log.user_codes, used_users)
    item_rows = _write_keys(place, "item_keys", log.item_codes, used_items)
    with _writers(place, log.dtypes, total) as arrays:
        for chunk in log.chunks():
            left = ~numbering.kept(chunk)[2]
            users, items = user_rows[chunk.users], item_rows[chunk.items]
            columns = {"users": users, "items": items, "times": chunk.times, **chunk.columns}
            for name, array in arrays.items():
                array.append(columns[name][left])


def read_rest(dataset: Path, columns: Sequence[EventColumn] = ()) -> Rest:
    """Read what `write_rest` wrote; a `DataError` if the arrays contradict each other."""
    place = dataset / FOLDER
    times = map_array(place / "times.npy")
    keys = []
    for name in ("user", "item"):
        rows = map_array(place / f"{name}s.npy")
        table = StringTable(place, f"{name}_keys")
        fits = table.is_valid and rows.shape == times.shape and rows.dtype == np.int32
        fits &= times.dtype == np.int64 and times.ndim == 1
        if not fits or (len(rows) and not 0 <= rows.min() <= rows.max() < len(table)):
            raise DataError(f"{place} contradicts itself: prepare the dataset again")
        keys.append(pl.Series(table.tolist(), dtype=pl.String).gather(rows))
    staged = [map_array(place / f"{column.name}.npy") for column in columns]
    for column, array in zip(columns, staged, strict=True):
        if array.shape != times.shape or array.dtype != column.dtype:
            raise DataError(f"{place} contradicts itself: prepare the dataset again")
    return Rest(keys[0], keys[1], np.array(times), tuple(map(np.array, staged)))


def read_described(dataset: Path) -> dict[str, Any]:
    """Return the event columns of a growing dataset, as `write_rest` was told; or none."""
    path = dataset / COLUMNS
    return read_document(path, "prepare the dataset again") if path.is_file() else {}


def _write_keys(place: Path, name: str, codes: KeyCodes, used: np.ndarray) -> np.ndarray:
    """Write the keys of used codes, and return the row of each code.  `[len(codes)]`, int32."""
    write_strings(place, name, codes.keys.filter(pl.Series(used)))
    return (np.cumsum(used) - 1).astype(np.int32)
