"""Parts of sequences, compiled by numba: each is copied once, nothing is masked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray

# Windows looked at together: users lie anywhere in a log larger than any cache, and loads that do
# not wait for each other take the time of one.
BLOCK = 32


@njit(cache=True, error_model="numpy", nogil=True)
def windows(items: Array, starts: Array, ends: Array, out: Array) -> int:
    """Write `items[start:end]` of each row to `out` `[n, L]`, and 0 behind it.

    Args:
        items: `[m]`, integers of any width.
        starts: `[n]`.
        ends: `[n]`, at most L more than the starts.
        out: Written.

    Returns:
        A sum that keeps the early loads alive.
    """
    fetched = 0
    for n in range(starts.shape[0]):
        if n % BLOCK == 0:
            for i in range(n, min(n + BLOCK, starts.shape[0])):
                if starts[i] < ends[i]:
                    fetched += items[starts[i]] + items[ends[i] - 1]
        row, start = out[n], starts[n]
        size = ends[n] - start
        for t in range(size):
            row[t] = items[start + t]
        row[size:] = 0
    return fetched


@njit(cache=True, error_model="numpy", nogil=True)
def ranges(items: Array, starts: Array, offsets: Array, out: Array) -> None:
    """Write `items[start : start + size]` of each row to `out`, end to end.

    Args:
        items: `[m]`, integers of any width.
        starts: `[n]`.
        offsets: `[n + 1]`, where each row's begin in `out`.
        out: Written.
    """
    for n in range(starts.shape[0]):
        first, start = offsets[n], starts[n]
        for t in range(offsets[n + 1] - first):
            out[first + t] = items[start + t]
