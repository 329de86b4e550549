"""The scores of a tile that exceed their user's threshold: what can still enter a top-k list."""

from __future__ import annotations

import torch
from torch import Tensor

from crossbatch.kernels.compiler import Array, array, compiled, usable

Found = tuple[Tensor, Tensor, Tensor]

FEW_USERS = 16  # the compiled scan reads lines of users; with fewer, torch is faster
MAX_FOUND = 1 << 18  # scores that the compiled scan has room for; torch finds more


def definition(tile: Tensor, group: int, threshold: Tensor) -> Found:
    """As `scores_above`, as torch operations."""
    n, K, B = tile.shape
    maxima = tile.reshape(n // group, group * K, B).amax(dim=1)  # [G, B]
    groups, users = (maxima > threshold).nonzero(as_tuple=True)
    scores = tile.reshape(n // group, group, K, B)[groups, :, :, users].amax(dim=2)  # [H, group]
    hits, offsets = (scores > threshold[users, None]).nonzero(as_tuple=True)
    return users[hits], groups[hits] * group + offsets, scores[hits, offsets]


def scores_above(tile: Tensor, group: int, threshold: Tensor) -> Found:
    """Users, items of the tile and scores wherever a user's score of an item exceeds a threshold.

    A user's items are in ascending order.

    Args:
        tile: `[n, K, B]` scores of n items for K interests of B users, float32 or float64; the
            score of an item is the largest over K.
        group: Divides n; consecutive items whose maximum is compared before they are.
        threshold: `[B]`, of the tile's dtype and device.
    """
    _check(tile, group, threshold)
    if tile.shape[2] < FEW_USERS or not usable(tile, threshold):
        return definition(tile, group, threshold)
    room = min(MAX_FOUND, len(tile) * tile.shape[2])
    users, items = torch.empty(2, room, dtype=torch.int64)
    scores, best = tile.new_empty(room), tile.new_empty(tile.shape[2])
    arrays = [array(threshold), *(tensor.numpy() for tensor in (best, users, items, scores))]
    count = _scan(array(tile), group, *arrays)
    if count < 0:
        return definition(tile, group, threshold)
    return users[:count].clone(), items[:count].clone(), scores[:count].clone()


def _check(tile: Tensor, group: int, threshold: Tensor) -> None:
    """Raise `ValueError` for what the compiled function could not read safely."""
    if tile.dim() != 3 or tile.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"tile must be [n, K, B] floats, got {tile.dtype} {list(tile.shape)}")
    if tile.shape[1] == 0 or group < 1 or len(tile) % group:
        raise ValueError(
            f"a tile needs an interest and whole groups of {group} items, got {list(tile.shape)}"
        )
    alike = threshold.dtype == tile.dtype and threshold.device == tile.device
    if not alike or threshold.shape != tile.shape[2:]:
        raise ValueError(
            f"threshold must be [{tile.shape[2]}] {tile.dtype} on {tile.device}, got "
            f"{list(threshold.shape)} {threshold.dtype} on {threshold.device}"
        )


@compiled
def _scan(
    tile: Array,
    group: int,
    threshold: Array,
    best: Array,
    users: Array,
    items: Array,
    scores: Array,
) -> int:
    """Write what is found into the last three arrays; return how much, or −1 without room."""
    n, K, B = tile.shape
    count = 0
    for first in range(0, n, group):
        for b in range(B):
            best[b] = tile[first, 0, b]
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
