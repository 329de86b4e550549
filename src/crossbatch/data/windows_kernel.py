"""Parts of sequences, compiled by numba: each is copied once, nothing is masked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

from crossbatch.kernels.memory import prefetch_line

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray

# Windows asked for before they are needed: users lie anywhere in a log larger than any cache.
AHEAD = 16


@njit(cache=True, error_model="numpy", nogil=True)
def windows(items: Array, starts: Array, ends: Array, out: Array) -> None:
    """Write `items[start:end]` of each row to `out` `[n, L]`, and 0 behind it.

    Args:
        items: `[1, m]`, integers of any width.
        starts: `[n]`.
        ends: `[n]`, at most L more than the starts.
        out: Written.
    """
    for n in range(starts.shape[0]):
        if n + AHEAD < starts.shape[0]:
            prefetch_line(items, 0, starts[n + AHEAD])
            prefetch_line(items, 0, ends[n + AHEAD])
        row, start = out[n], starts[n]
        size = ends[n] - start
        for t in range(size):
            row[t] = items[0, start + t]
        row[size:] = 0


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
