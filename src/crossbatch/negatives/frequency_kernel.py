"""A table look-up compiled by numba that also says if anything is wrong with what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    Array = np.ndarray


@njit(cache=True, error_model="numpy", nogil=True)
def looked_up(table: Array, ids: Array) -> tuple[Array, bool]:
    """`table` `[R]` at `ids` `[n]`, float32 `[n]`.

    And whether all ids are rows of the table and all values more than −inf.
    """
    found = np.empty(ids.shape[0], dtype=np.float32)
    for n in range(ids.shape[0]):
        if not 0 <= ids[n] < table.shape[0] or table[ids[n]] == -np.inf:
            return found, False
        found[n] = table[ids[n]]
    return found, True
