"""Interactions that the minimum counts left out, kept in a dataset that days are added to.

An item of four interactions may get its fifth tomorrow.  `append` then needs the first four, and
the log that they came from is not read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import ArrayWriter, map_array
from crossbatch.data.dataset.string_table import StringTable, write_strings
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.data.prepare.numbering import Numbering
    from crossbatch.data.prepare.staged_log import KeyCodes, StagedLog

FOLDER = "rest"


class Rest(NamedTuple):
    """Interactions in the order of their log."""

    users: pl.Series  # [n] original keys
    items: pl.Series  # [n] original keys
    times: np.ndarray  # [n] int64, microseconds


def write_rest(folder: Path, log: StagedLog, numbering: Numbering) -> None:
    """Write the interactions of a log that were not kept, their keys once each."""
    place = folder / FOLDER
    place.mkdir()
    used_users = np.zeros(len(log.user_codes), dtype=bool)
    used_items = np.zeros(len(log.item_codes), dtype=bool)
    total = 0
    for chunk in log.chunks():
        left = ~numbering.kept(chunk)[2]
        used_users[chunk.users[left]] = used_items[chunk.items[left]] = True
        total += int(left.sum())
    user_rows = _write_keys(place, "user_keys", log.user_codes, used_users)
    item_rows = _write_keys(place, "item_keys", log.item_codes, used_items)
    with (
        ArrayWriter(place / "users.npy", np.int32, total) as users,
        ArrayWriter(place / "items.npy", np.int32, total) as items,
        ArrayWriter(place / "times.npy", np.int64, total) as times,
    ):
        for chunk in log.chunks():
            left = ~numbering.kept(chunk)[2]
            users.append(user_rows[chunk.users[left]])
            items.append(item_rows[chunk.items[left]])
            times.append(chunk.times[left])


def read_rest(folder: Path) -> Rest:
    """Read what `write_rest` wrote.

    Raises:
        DataError: If the arrays contradict each other.
    """
    place = folder / FOLDER
    times = map_array(place / "times.npy")
    columns = []
    for name in ("user", "item"):
        rows = map_array(place / f"{name}s.npy")
        table = StringTable(place, f"{name}_keys")
        fits = table.is_valid and rows.shape == times.shape and rows.dtype == np.int32
        fits &= times.dtype == np.int64 and times.ndim == 1
        if not fits or (len(rows) and not 0 <= rows.min() <= rows.max() < len(table)):
            raise DataError(f"{place} contradicts itself: prepare the dataset again")
        columns.append(pl.Series(table.tolist(), dtype=pl.String).gather(rows))
    return Rest(columns[0], columns[1], np.array(times))


def _write_keys(place: Path, name: str, codes: KeyCodes, used: np.ndarray) -> np.ndarray:
    """Write the keys of used codes, and return the row of each code.  `[len(codes)]`, int32."""
    write_strings(place, name, codes.keys.filter(pl.Series(used)))
    return (np.cumsum(used) - 1).astype(np.int32)
