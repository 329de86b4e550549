"""The log as numbers on disk: string ids become codes, 16 bytes an interaction.

Everything after this point (filters, sort, split) reads fixed-size chunks of three flat files, so
that memory is bounded by the number of users and items, never by the number of interactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK_ROWS = 1 << 21


def hashed(keys: pl.Series) -> pl.Series:
    """Return 64-bit hashes; never stored, for they differ between versions of the engine."""
    return keys.hash(0)


class KeyCodes:
    """Number string keys 0, 1, 2 … in order of first appearance.

    Keys are matched by a 64-bit hash, several times cheaper than by the strings themselves; each
    match is then compared with the stored key, and a collision switches to matching by string.
    """

    def __init__(self) -> None:
        self._known = pl.DataFrame(schema={"key": pl.String, "hash": pl.UInt64, "code": pl.UInt32})
        self._match = "hash"

    def __len__(self) -> int:
        return len(self._known)

    @property
    def keys(self) -> pl.Series:
        """Every key, in order of its code."""
        return self._known["key"]

    def encode(self, keys: pl.Series) -> np.ndarray:
        """Return the code of each key, new keys added.  Shape `[len(keys)]`, uint32."""
        frame = pl.DataFrame({"key": keys, "hash": hashed(keys)})
        codes = self._look_up(frame, self._known)
        new = codes.is_null()
        if new.any():
            unknown = frame.filter(new)
            fresh = unknown.unique(self._match, keep="first", maintain_order=True)
            start, end = len(self), len(self) + len(fresh)
            numbers = pl.int_range(start, end, dtype=pl.UInt32, eager=True).alias("code")
            fresh = fresh.with_columns(numbers)
            self._known = pl.concat([self._known, fresh]).rechunk()
            codes = codes.scatter(new.arg_true(), self._look_up(unknown, fresh))
        if self._match == "hash" and not (self.keys.gather(codes) == keys).all():
            self._match = "key"  # the key that lost its number to a shared hash gets a new one
            return self.encode(keys)
        return codes.to_numpy()

    def _look_up(self, frame: pl.DataFrame, table: pl.DataFrame) -> pl.Series:
        """Return the code of each row of `frame`, null where `table` has none."""
        wanted, known = frame.select(self._match), table.select(self._match, "code")
        return wanted.join(known, on=self._match, how="left", maintain_order="left")["code"]


class LogChunk(NamedTuple):
    """Consecutive interactions: codes and times, in the order of the source."""

    users: np.ndarray  # [n] uint32
    items: np.ndarray  # [n] uint32
    times: np.ndarray  # [n] int64, microseconds since 1970
    first_row: int  # number of the first interaction in the log


class StagedLog:
    """Interactions as three flat files that are written once and then read in chunks.

    Args:
        folder: An existing folder for the files.
    """

    def __init__(self, folder: Path) -> None:
        self.user_codes, self.item_codes = KeyCodes(), KeyCodes()
        self.rows = 0
        self._paths = [folder / name for name in ("users.u32", "items.u32", "times.i64")]
        self._files = [path.open("wb") for path in self._paths]

    def append(self, users: pl.Series, items: pl.Series, times: np.ndarray) -> np.ndarray:
        """Add interactions and return their users' codes.

        Args:
            users: Keys without null.  Shape `[n]`.
            items: Keys without null.  Shape `[n]`.
            times: Microseconds.  Shape `[n]`, int64.
        """
        user_codes = self.user_codes.encode(users)
        arrays = (user_codes, self.item_codes.encode(items), times)
        for file, array in zip(self._files, arrays, strict=True):
            file.write(np.ascontiguousarray(array).data)
        self.rows += len(times)
        return user_codes

    def close(self) -> None:
        """Finish writing."""
        for file in self._files:
            file.close()

    def delete(self) -> None:
        """Remove the files, once the sequences are written."""
        self.close()
        for path in self._paths:
            path.unlink()

    def chunks(self) -> Iterator[LogChunk]:
        """Yield the log from its beginning, `CHUNK_ROWS` interactions at a time."""
        dtypes = (np.uint32, np.uint32, np.int64)
        for first in range(0, self.rows, CHUNK_ROWS):
            users, items, times = (
                np.fromfile(path, dtype, CHUNK_ROWS, offset=first * np.dtype(dtype).itemsize)
                for path, dtype in zip(self._paths, dtypes, strict=True)
            )
            yield LogChunk(users, items, times, first)
