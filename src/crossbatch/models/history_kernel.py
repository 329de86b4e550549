"""Real entries of histories `[B, L]`, where 0 is padding, compiled by numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    Array = np.ndarray


@njit(cache=True, error_model="numpy", nogil=True)
def by_history(history: Array) -> tuple[Array, Array, Array]:
    """Entries `[P]` of one history after the other, where each ends `[B]`, and places in it `[P]`.

    A place that is padding between entries is not counted.
    """
    B, L = history.shape
    entries = np.empty(B * L, dtype=np.int64)
    places = np.empty(B * L, dtype=np.int64)
    stops = np.empty(B, dtype=np.int64)
    P = 0
    for b in range(B):
        start = P
        for t in range(L):
            if history[b, t] != 0:
                entries[P], places[P] = history[b, t], P - start
                P += 1
        stops[b] = P
    return entries[:P], stops, places[:P]


@njit(cache=True, error_model="numpy", nogil=True)
def by_step(history: Array) -> tuple[Array, Array, Array]:
    """Entries `[P]` of the first step, then of the second, and so on, of the longest history first.

    Returns:
        The entries; how many histories reach each step; and which they are, longest first.
    """
    B, L = history.shape
    lengths = np.zeros(B, dtype=np.int64)
    reaching = np.zeros(L + 1, dtype=np.int64)  # histories of more than t items
    for b in range(B):
        for t in range(L):
            lengths[b] += history[b, t] != 0
        for t in range(lengths[b]):
            reaching[t] += 1
    order = np.empty(reaching[0], dtype=np.int64)
    following = reaching.copy()  # by t: the place after the last history of t items
    for b in range(B - 1, -1, -1):
        if lengths[b] > 0:
            following[lengths[b] - 1] -= 1
            order[following[lengths[b] - 1]] = b
    starts = np.zeros(L + 1, dtype=np.int64)
    for t in range(L):
        starts[t + 1] = starts[t] + reaching[t]
    entries = np.empty(starts[L], dtype=np.int64)
    for i in range(order.shape[0]):
        t = 0
        for place in range(L):
            entry = history[order[i], place]
            if entry != 0:
                entries[starts[t] + i] = entry
                t += 1
    steps = 0
    while steps < L and reaching[steps] > 0:
        steps += 1
    return entries, reaching[:steps], order
