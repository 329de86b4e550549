"""Compiled capsules by dynamic routing and their gradients: the inside of `routed_interests`.

A history has some ten items and four interests: as batched matrix products the rounds are dozens of
operations on tiny matrices, while one history after the other stays in the first-level cache.
"""

from __future__ import annotations

from typing import Any

from crossbatch.kernels.compiler import Array, compiled, compiled_reordered, intrinsic, np

exponential, copy = intrinsic("exponential"), intrinsic("copy")
product, t_product = intrinsic("product"), intrinsic("t_product")
floats_of = intrinsic("floats_of")

# Shares below e^-40 and capsules shorter than 1e-10 are 0: nothing in float32 would notice, and
# products with them would be denormal numbers, which are a hundred times as slow.
LEAST_LOGIT, LEAST_SQUARE = -40.0, 1e-20
GROUP = 4  # interests that are worked on together: an item is loaded once for all of them


@compiled_reordered
def route(
    iterations: int,
    items: Array,
    stops: Array,
    logits: Array,
    shares: Array,
    flat: Array,
    sums: Array,
    capsules: Array,
) -> bool:
    """Write the capsules `[B K, d]` of all histories, and the routing weights that they have.

    Returns whether the histories are those of P items.

    Args:
        iterations: Rounds of routing.
        items: `[P, d]` mapped items of all histories, end to end.
        stops: `[B]` where each history ends.
        logits: First routing logits `[P, K']`, K' being K rounded up to full groups; −inf beyond
            the K interests. They are used up.
        shares: `[P, K']` written: routing weights.
        flat: The same memory in one row.
        sums: `[K', d]` memory.
        capsules: Written.
    """
    B, full = stops.shape[0], shares.shape[1]
    start = np.int64(0)  # for 0 alone, a constant, the functions called would be compiled once more
    K = capsules.shape[0] // max(B, 1)
    for b in range(B):
        stop = stops[b]
        if not start <= stop <= items.shape[0]:
            return False
        for round_ in range(iterations):
            for k in range(0, full if round_ > 0 else 0, GROUP):
                _add_agreement(items, start, stop, sums, k, logits)
            _share_out(logits, start, stop, shares, flat)
            for k in range(0, full, GROUP):
                _sum_up(items, start, stop, shares, k, sums)
            for k in range(full):
                _squash(sums[k])
        for k in range(K):
            copy(sums[k], capsules[b * K + k])
        start = stop
    return bool(start == items.shape[0])


@compiled_reordered
def _add_agreement(
    items: Array, start: int, stop: int, capsules: Array, k: int, logits: Array
) -> None:
    """Dot products of items and the four capsules from number k on, added to their logits."""
    c0, c1, c2, c3 = capsules[k], capsules[k + 1], capsules[k + 2], capsules[k + 3]
    for i in range(start, stop):
        item = items[i]
        t0, t1, t2, t3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for j in range(item.shape[0]):
            x = item[j]
            t0 += c0[j] * x
            t1 += c1[j] * x
            t2 += c2[j] * x
            t3 += c3[j] * x
        logit = logits[i]
        logit[k] += t0
        logit[k + 1] += t1
        logit[k + 2] += t2
        logit[k + 3] += t3


@compiled_reordered
def _share_out(logits: Array, start: int, stop: int, shares: Array, flat: Array) -> None:
    """Softmax over the interests of each item; `flat` is the memory of `shares` in one row."""
    full = shares.shape[1]
    for i in range(start, stop):
        logit, share, peak = logits[i], shares[i], logits[i, 0]
        for k in range(1, full):
            if logit[k] > peak:
                peak = logit[k]
        for k in range(full):
            share[k] = logit[k] - peak
    some = floats_of(flat, start * full, (stop - start) * full)
    for x in range(some.shape[0]):  # a loop over four numbers would not be vectorised
        value = exponential(some[x])
        some[x] = value if some[x] > np.float32(LEAST_LOGIT) else np.float32(0)
    for i in range(start, stop):
        share, total = shares[i], np.float32(0)
        for k in range(full):
            total += share[k]
        part = np.float32(1) / total
        for k in range(full):
            share[k] *= part


@compiled_reordered
def _sum_up(items: Array, start: int, stop: int, shares: Array, k: int, capsules: Array) -> None:
    """Sums of the items, weighted by the shares of the four capsules from number k on."""
    c0, c1, c2, c3 = capsules[k], capsules[k + 1], capsules[k + 2], capsules[k + 3]
    for j in range(c0.shape[0]):
        c0[j], c1[j], c2[j], c3[j] = 0, 0, 0, 0
    for i in range(start, stop - 1, 2):  # two items at a time: the sums are loaded half as often
        one, two, s, t = items[i], items[i + 1], shares[i], shares[i + 1]
        s0, s1, s2, s3 = s[k], s[k + 1], s[k + 2], s[k + 3]
        t0, t1, t2, t3 = t[k], t[k + 1], t[k + 2], t[k + 3]
        for j in range(one.shape[0]):
            x, y = one[j], two[j]
            c0[j] += s0 * x + t0 * y
            c1[j] += s1 * x + t1 * y
            c2[j] += s2 * x + t2 * y
            c3[j] += s3 * x + t3 * y
    if (stop - start) & 1:
        for g in range(k, k + GROUP):
            _add(capsules[g], shares[stop - 1, g], items[stop - 1])


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
def gradients(
    chosen: Array,
    interests: int,
    items: Array,
    stops: Array,
    weight: Array,
    dense: Array,
    found: Array,
    mapped: Array,
    shares: Array,
    capsules: Array,
    back: Array,
    rooms: Array,
    raw: Array,
    grad_items: Array,
    grad_weight: Array,
    grad_bias: Array,
    grad_dense: Array,
    grad_dense_bias: Array,
) -> None:
    """Write the gradients of items and parameters into zeros; routing weights carry none.

    Args:
        chosen: `[R]` numbers b K + k of those interests whose gradient is not zero.
        interests: K.
        items: `[P, w]`.
        stops: `[B]`.
        weight: `[d, w]` map of the items.
        dense: `[d, d]` layer behind the capsules; `[0, d]` for none.
        found: `[B K, d]` interests.
        mapped: `[P, d]`; like `shares` and `capsules` from `route`.
        shares: `[P, K']`.
        capsules: `[B K, d]`.
        back: `[R, d]` gradients of the chosen interests; they are used up.
        rooms: `[R + 1, d]` memory.
        raw: `[R, w]` zeros, for weighted sums of the items before the map.
        grad_items: Written, like those that follow.
        grad_weight: Of the map.
        grad_bias: Of the map.
        grad_dense: Of the layer.
        grad_dense_bias: Of the layer.
    """
    R = chosen.shape[0]
    sums = rooms[R]
    if dense.shape[0] > 0:
        back = _back_through_layer(
            chosen, found, capsules, dense, back, rooms[:R], grad_dense, grad_dense_bias
        )
    for r in range(R):
        b, start, total = chosen[r] // interests, 0, np.float32(0)
        k = chosen[r] - b * interests
        if b > 0:
            start = stops[b - 1]
        for j in range(sums.shape[0]):
            sums[j] = 0
        for i in range(start, stops[b]):
            share = shares[i, k]
            total += share
            _add(raw[r], share, items[i])
            _add(sums, share, mapped[i])
        _back_through_squash(sums, back[r])
        _add(grad_bias, total, back[r])
    t_product(back, raw, grad_weight, 0)
    product(back, weight, raw, 0)  # the gradient of `raw` takes its place
    for r in range(R):
        b, start = chosen[r] // interests, 0
        k = chosen[r] - b * interests
        if b > 0:
            start = stops[b - 1]
        for i in range(start, stops[b]):
            _add(grad_items[i], shares[i, k], raw[r])


@compiled
def _back_through_layer(
    chosen: Array,
    found: Array,
    capsules: Array,
    dense: Array,
    back: Array,
    room: Array,
    grad_dense: Array,
    grad_dense_bias: Array,
) -> Array:
    """Gradients of the chosen capsules `[R, d]`, of the dense layer and of its bias."""
    for r in range(chosen.shape[0]):
        through, seen, row = back[r], capsules[chosen[r]], found[chosen[r]]
        for j in range(row.shape[0]):
            through[j] = through[j] if row[j] > np.float32(0) else np.float32(0)
            room[r, j] = seen[j]
            grad_dense_bias[j] += through[j]
    t_product(back, room, grad_dense, 0)
    product(back, dense, room, 0)
    return room


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
