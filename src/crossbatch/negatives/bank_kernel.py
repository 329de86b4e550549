"""What a bank does at the end of every step, compiled by numba: one call instead of ten tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from crossbatch.kernels.memory import copy

if TYPE_CHECKING:
    Array = np.ndarray


@njit(cache=True, error_model="numpy", nogil=True)
def append(
    start: int,
    step: int,
    embeddings: Array,
    item_ids: Array,
    log_q: Array,
    birth: Array,
    new_embeddings: Array,
    new_ids: Array,
    new_log_q: Array,
) -> bool:
    """Write new rows from row `start` of a bank's buffers on, born at `step`.

    Returns:
        Whether all of them are finite; nothing is written otherwise.
    """
    total = new_log_q.sum()
    for n in range(new_ids.shape[0]):
        total += _zero_or_nan(new_embeddings[n])
    if not np.isfinite(total):
        return False
    for n in range(new_ids.shape[0]):
        copy(new_embeddings[n], embeddings[start + n])
        item_ids[start + n], log_q[start + n] = new_ids[n], new_log_q[n]
        birth[start + n] = step
    return True


@njit(fastmath={"reassoc"}, cache=True, error_model="numpy", nogil=True)
def _zero_or_nan(row: Array) -> np.float32:
    """A sum of zeros: x · 0 is no number where x is not finite."""
    total = np.float32(0)
    for k in range(row.shape[0]):
        total += row[k] * np.float32(0)
    return total
