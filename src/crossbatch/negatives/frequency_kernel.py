"""A table look-up compiled by numba that also says if anything is wrong with what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    Array = np.ndarray


@njit(cache=True, error_model="numpy", nogil=True)
def look_up(table: Array, ids: Array, out: Array) -> bool:
    """Write `table` `[R]` at `ids` `[n]` to `out` `[n]`.

    Returns:
        Whether all ids are rows of the table and all values more than −inf.
    """
    for n in range(ids.shape[0]):
        if not 0 <= ids[n] < table.shape[0]:
            return False
        out[n] = table[ids[n]]
        if out[n] == -np.inf:
            return False
    return True
