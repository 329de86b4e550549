"""Rounds of routing compiled by numba.

A history has some ten items and four interests: as batched matrix products these rounds are dozens
of operations on tiny matrices, while one history after the other stays in the first-level cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    Array = np.ndarray


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True)
def settle(
    mapped: Array, places: Array, stops: Array, logits: Array, rounds: int, weights: Array
) -> None:
    """Write the routing weights after some rounds of agreement.

    Args:
        mapped: `[P, d]` items of all histories, end to end, through the bilinear map.
        places: `[P]` their places in a `[B, L]` history.
        stops: `[B]` where each history ends in `mapped`.
        logits: `[B, K, L]` first routing logits.
        rounds: Rounds before the weights are read.
        weights: `[B, K, L]`, zeros; filled at real positions.
    """
    _, K, L = logits.shape
    d = mapped.shape[1]
    share = np.empty((L, K), dtype=np.float32)
    agreed = np.empty((L, K), dtype=np.float32)
    capsules = np.empty((K, d), dtype=np.float32)
    start = 0
    for b in range(stops.shape[0]):
        items, n = mapped[start : stops[b]], stops[b] - start
        for i in range(n):
            for k in range(K):
                agreed[i, k] = logits[b, k, places[start + i] - b * L]
        _shares(agreed[:n], share)
        for _ in range(rounds):
            _squashed_sums(items, share, capsules)
            for i in range(n):
                for k in range(K):
                    total = np.float32(0)
                    for j in range(d):
                        total += capsules[k, j] * items[i, j]
                    agreed[i, k] += total
            _shares(agreed[:n], share)
        for i in range(n):
            for k in range(K):
                weights[b, k, places[start + i] - b * L] = share[i, k]
        start = stops[b]


@njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
def _shares(logits: Array, share: Array) -> None:
    """Softmax over the interests of each item."""
    for i in range(logits.shape[0]):
        peak = logits[i].max()
        total = np.float32(0)
        for k in range(logits.shape[1]):
            share[i, k] = math.exp(logits[i, k] - peak)
            total += share[i, k]
        for k in range(logits.shape[1]):
            share[i, k] /= total


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True)
def _squashed_sums(items: Array, share: Array, capsules: Array) -> None:
    """Capsules `[K, d]`: weighted sums of the items, squashed."""
    for k in range(capsules.shape[0]):
        capsule = capsules[k]
        capsule[:] = 0
        for i in range(items.shape[0]):
            part = share[i, k]
            for j in range(capsule.shape[0]):
                capsule[j] += part * items[i, j]
        square = np.float32(0)
        for j in range(capsule.shape[0]):
            square += capsule[j] * capsule[j]
        scale = square / (np.float32(1) + square) / np.sqrt(square + np.float32(1e-9))
        for j in range(capsule.shape[0]):
            capsule[j] *= scale
