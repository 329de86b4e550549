"""Sessions: which events of a user belong together, by a column of the log or by pauses."""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import ArrayWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crossbatch.data.prepare.event_columns import Append

MINUTE = 60 * 1_000_000  # microseconds


@dataclass(frozen=True, slots=True)
class SessionColumn:
    """Sessions, as `session_places.npy`: how many events of its session came before each one.

    A session ends where the next event of the user is of another one, or comes after a pause of
    more than `gap` minutes.
    """

    named: bool  # whether the log has a column of sessions
    gap: float | None = None
    growing: bool = False  # whether days may be added later
    name: str = "session"

    @property
    def dtype(self) -> Any:
        """Of what is staged: a hash of the session's id, which tells a user's sessions apart."""
        return np.uint32 if self.named else None

    def staged(self, frame: pl.DataFrame) -> np.ndarray:
        """Return a hash of each row's session.  `[n]`, uint32."""
        sessions = frame["session"].cast(pl.String).fill_null("")
        if not self.growing:  # that of polars is faster, and may change between versions
            return (sessions.hash(seed=0).to_numpy() >> np.uint64(32)).astype(np.uint32)
        # CRC-32 never changes, for a day that is added later must give the same; that two sessions
        # of a user, one after the other, share it, happens once in 4 billion
        distinct = sessions.unique()
        hashes = [zlib.crc32(session.encode()) for session in distinct.to_list()]
        return sessions.replace_strict(
            distinct, pl.Series(hashes, dtype=pl.UInt32), return_dtype=pl.UInt32
        ).to_numpy()

    def keep(self, dataset: Path) -> None:
        """Write nothing: the hashes of the interactions are kept."""

    def resume(self, dataset: Path) -> None:
        """Read nothing."""

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return the place of sorted interactions in their sessions, from 0.  `[n]`, int64."""
        begins = np.ones(len(rows), dtype=bool)
        begins[1:] = rows["user"][1:] != rows["user"][:-1]
        if self.named:
            begins[1:] |= rows["session"][1:] != rows["session"][:-1]
        if self.gap is not None:
            begins[1:] |= np.diff(rows["time"]) > self.gap * MINUTE
        numbers = np.arange(len(rows))
        return numbers - np.maximum.accumulate(np.where(begins, numbers, 0))

    @contextmanager
    def writer(self, folder: Path, total: int) -> Iterator[Append]:
        """Write `[total]` places, int32."""
        with ArrayWriter(folder / "session_places.npy", np.int32, total) as array:
            yield lambda rows: array.append(self.places(rows))
