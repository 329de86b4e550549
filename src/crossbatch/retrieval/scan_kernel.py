"""The scan of a tile of scores compiled by numba: what can still enter a list, in one pass.

As torch operations it is a maximum, a comparison, two searches for what is true and two gathers.
`RunningTopK` uses those where numba is not installed, and tests hold the two against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    Array = np.ndarray


@njit(cache=True, error_model="numpy", nogil=True)
def above(
    tile: Array, group: int, threshold: Array, users: Array, items: Array, scores: Array
) -> int:
    """Write down the scores of a tile that exceed their user's threshold, a user's in item order.

    Args:
        tile: `[G·group, K, B]`; an item's score is the largest over K.
        group: Items whose maximum is looked at before they are.
        threshold: `[B]`.
        users: `[room]` int64, written: whose score it is.
        items: `[room]` int64, written: which item of the tile.
        scores: `[room]`, written.

    Returns:
        How many there are; −1 if there is no room for them.
    """
    n, K, B = tile.shape
    best = np.empty(B, dtype=tile.dtype)
    count = 0
    for first in range(0, n, group):
        best[:] = tile[first, 0]
        for i in range(first, first + group):
            for k in range(K):
                line = tile[i, k]
                for b in range(B):
                    best[b] = line[b] if line[b] > best[b] else best[b]
        found = 0
        for b in range(B):
            found += best[b] > threshold[b]
        if found == 0:
            continue
        for b in range(B):
            if best[b] <= threshold[b]:
                continue
            for i in range(first, first + group):
                score = tile[i, 0, b]
                for k in range(1, K):
                    score = max(score, tile[i, k, b])
                if score > threshold[b]:
                    if count == users.shape[0]:
                        return -1
                    users[count], items[count], scores[count] = b, i, score
                    count += 1
    return count
