"""Which columns a row's user is known to like, compiled by numba: no sorting, no `[B, P]` table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    Array = np.ndarray

ROOM = 8  # places of the table for each column, at least: most ids then meet an empty one


@njit(cache=True, error_model="numpy", nogil=True)
def mark_known(ids: Array, offsets: Array, column_ids: Array, mask: Array) -> None:
    """Set `mask` where a column is among the row's ids; columns are chained by their last bits.

    Args:
        ids: Of all rows end to end; negative ones are padding.
        offsets: `[B + 1]`, where those of each row begin.
        column_ids: `[N]`.
        mask: `[B, N]` bool, False so far.
    """
    N = column_ids.shape[0]
    size = 1
    while size < ROOM * N:
        size *= 2
    head = np.full(size, -1, dtype=np.int32)
    following = np.empty(N, dtype=np.int32)
    for c in range(N):
        bucket = column_ids[c] & (size - 1)
        following[c] = head[bucket]
        head[bucket] = c
    for r in range(mask.shape[0]):
        for n in range(offsets[r], offsets[r + 1]):
            if ids[n] < 0:
                continue
            c = head[ids[n] & (size - 1)]
            while c >= 0:
                if column_ids[c] == ids[n]:
                    mask[r, c] = True
                c = following[c]
