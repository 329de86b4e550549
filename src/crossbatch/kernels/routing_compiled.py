"""Compiled capsules by dynamic routing and their gradients: the inside of `routed_interests`.

A history has some ten items and four interests: as batched matrix products the rounds are dozens of
operations on tiny matrices, while one history after the other stays in the first-level cache.
"""

from __future__ import annotations

from typing import Any

from crossbatch.kernels.compiler import Array, compiled, compiled_reordered, np
from crossbatch.kernels.softmax_compiled import exponentials

# Shares below e^-40 and capsules shorter than 1e-10 are 0: nothing in float32 would notice, and
# products with them would be denormal numbers, which are a hundred times as slow.
LEAST_LOGIT, LEAST_SQUARE = -40.0, 1e-20
GROUP = 4  # interests that are worked on together: an item is loaded once for all of them


@compiled
def route(
    iterations: int, mapped: Array, stops: Array, logits: Array, shares: Array, capsules: Array
) -> None:
    """Write the routing weights of all items and the capsules of all histories.

    Args:
        iterations: Rounds.
        mapped: `[P, d]` items after the shared map.
        stops: `[B]` where each history ends.
        logits: `[P, K]`.
        shares: `[P, K']`, K' being K rounded up to full groups.
        capsules: `[B, K, d]`.
    """
    (P, K), full, d = logits.shape, shares.shape[1], mapped.shape[1]
    agreed = np.empty((P, full), dtype=np.float32)
    for p in range(P):
        for k in range(full):
            agreed[p, k] = logits[p, k] if k < K else np.float32(-np.inf)
    sums = np.empty((full, d), dtype=np.float32)
    start = 0
    for b in range(stops.shape[0]):
        stop = stops[b]
        _route_one(mapped[start:stop], agreed[start:stop], iterations, shares[start:stop], sums)
        for k in range(K):
            for j in range(d):
                capsules[b, k, j] = sums[k, j]
        start = stop


@compiled_reordered
def _route_one(
    items: Array, logits: Array, iterations: int, shares: Array, capsules: Array
) -> None:
    """Capsules `[K', d]` and routing weights `[n, K']` of one history `[n, d]`.

    `logits` `[n, K']` are used up; they are −inf beyond the K interests.
    """
    full = shares.shape[1]
    for round_ in range(iterations):
        if round_ > 0:
            for k in range(0, full, GROUP):
                _add_agreement(items, capsules[k : k + GROUP], logits[:, k : k + GROUP])
        _share_out(logits, shares)
        for k in range(0, full, GROUP):
            _sum_up(items, shares[:, k : k + GROUP], capsules[k : k + GROUP])
        for k in range(full):
            _squash(capsules[k])


@compiled_reordered
def _add_agreement(items: Array, capsules: Array, logits: Array) -> None:
    """Dot products of items `[n, d]` and four capsules `[4, d]`, added to `logits` `[n, 4]`."""
    c0, c1, c2, c3 = capsules[0], capsules[1], capsules[2], capsules[3]
    for i in range(items.shape[0]):
        item = items[i]
        t0, t1, t2, t3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for j in range(item.shape[0]):
            x = item[j]
            t0 += c0[j] * x
            t1 += c1[j] * x
            t2 += c2[j] * x
            t3 += c3[j] * x
        logits[i, 0] += t0
        logits[i, 1] += t1
        logits[i, 2] += t2
        logits[i, 3] += t3


@compiled_reordered
def _share_out(logits: Array, shares: Array) -> None:
    """Softmax over the interests of each item."""
    n, full = logits.shape
    for i in range(n):
        peak = logits[i, 0]
        for k in range(1, full):
            peak = logits[i, k] if logits[i, k] > peak else peak
        for k in range(full):
            shares[i, k] = logits[i, k] - peak
    flat = shares.reshape(n * full)  # a loop over four numbers would not be vectorised
    for x in range(flat.shape[0]):
        flat[x] = flat[x] if flat[x] > LEAST_LOGIT else np.float32(-np.inf)
    exponentials(flat, np.float32(0))
    for i in range(n):
        total = np.float32(0)
        for k in range(full):
            total += shares[i, k]
        part = np.float32(1) / total
        for k in range(full):
            shares[i, k] *= part


@compiled_reordered
def _sum_up(items: Array, shares: Array, capsules: Array) -> None:
    """Weighted sums `[4, d]` of the items."""
    c0, c1, c2, c3 = capsules[0], capsules[1], capsules[2], capsules[3]
    n = items.shape[0]
    for k in range(GROUP):
        for j in range(items.shape[1]):
            capsules[k, j] = 0
    for i in range(0, n - 1, 2):  # two items at a time: the sums are loaded half as often
        one, two = items[i], items[i + 1]
        s0, s1, s2, s3 = shares[i, 0], shares[i, 1], shares[i, 2], shares[i, 3]
        t0, t1, t2, t3 = shares[i + 1, 0], shares[i + 1, 1], shares[i + 1, 2], shares[i + 1, 3]
        for j in range(one.shape[0]):
            x, y = one[j], two[j]
            c0[j] += s0 * x + t0 * y
            c1[j] += s1 * x + t1 * y
            c2[j] += s2 * x + t2 * y
            c3[j] += s3 * x + t3 * y
    if n % 2:
        last = items[n - 1]
        for k in range(GROUP):
            share, capsule = shares[n - 1, k], capsules[k]
            for j in range(last.shape[0]):
                capsule[j] += share * last[j]


@compiled_reordered
def _squash(v: Array) -> None:
    square = np.float32(0)
    for j in range(v.shape[0]):
        square += v[j] * v[j]
    scale = square / (np.float32(1) + square) / np.sqrt(square + np.float32(1e-9))
    scale = scale if square > LEAST_SQUARE else np.float32(0)
    for j in range(v.shape[0]):
        v[j] *= scale


@compiled
def add_up(
    chosen: Array,
    stops: Array,
    K: int,
    items: Array,
    mapped: Array,
    shares: Array,
    back: Array,
    raw: Array,
    grad_bias: Array,
) -> None:
    """Turn gradients of capsules, `back` `[R, d]`, into those of the sums that were squashed.

    `chosen` `[R]` are the capsules' places b K + k, rising. Adds to `raw` `[R, w]` the weighted
    sums of the items before the map, and to `grad_bias` `[d]` the gradient of the map's bias.
    """
    sums = np.zeros(back.shape, dtype=np.float32)  # after the map
    for r in range(chosen.shape[0]):
        b, k = chosen[r] // K, chosen[r] % K
        total = np.float32(0)
        for i in range(0 if b == 0 else stops[b - 1], stops[b]):
            share = shares[i, k]
            total += share
            _add(raw[r], share, items[i])
            _add(sums[r], share, mapped[i])
        _back_through_squash(sums[r], back[r])
        _add(grad_bias, total, back[r])


@compiled
def spread(
    chosen: Array, stops: Array, K: int, shares: Array, of_raw: Array, of_items: Array
) -> None:
    """Add the gradients of weighted sums `[R, w]` to those of the items `[P, w]`."""
    for r in range(chosen.shape[0]):
        b, k = chosen[r] // K, chosen[r] % K
        for i in range(0 if b == 0 else stops[b - 1], stops[b]):
            _add(of_items[i], shares[i, k], of_raw[r])


@compiled
def rows_with_gradient(grad: Array) -> Array:
    """`[R]` those rows of `grad` `[n, d]` that are not zero."""
    rows = np.empty(grad.shape[0], dtype=np.int64)
    R = 0
    for r in range(grad.shape[0]):
        for j in range(grad.shape[1]):
            if grad[r, j] != 0:
                rows[R] = r
                R += 1
                break
    return rows[:R]


@compiled_reordered
def _back_through_squash(sums: Array, back: Array) -> None:
    """The gradient of a capsule f(|s|²) s becomes that of s: f g + 2 f' (s·g) s."""
    square, along = np.float32(0), np.float32(0)
    for j in range(sums.shape[0]):
        square += sums[j] * sums[j]
        along += sums[j] * back[j]
    one, length = np.float32(1), square + np.float32(1e-9)
    root = np.sqrt(length)
    scale = square / (one + square) / root
    slope = (one / (one + square) - np.float32(0.5) * square / length) / (one + square) / root
    for j in range(sums.shape[0]):
        back[j] = scale * back[j] + np.float32(2) * slope * along * sums[j]


@compiled
def _add(total: Array, factor: Any, vector: Array) -> None:
    for j in range(total.shape[0]):
        total[j] += factor * vector[j]
