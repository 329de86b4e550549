"""Compiled capsules by dynamic routing and their gradients: the inside of `routed_interests`.

A history has some ten items and four interests: as batched matrix products the rounds are dozens of
operations on tiny matrices, while one history after the other stays in the first-level cache.
"""

from __future__ import annotations

from typing import Any

from crossbatch.kernels.compiler import Array, compiled, compiled_reordered, intrinsic, np

product, product_t = intrinsic("product"), intrinsic("product_t")
t_product, exponential = intrinsic("t_product"), intrinsic("exponential")

# Shares below e^-40 and capsules shorter than 1e-10 are 0: nothing in float32 would notice, and
# products with them would be denormal numbers, which are a hundred times as slow.
LEAST_LOGIT, LEAST_SQUARE = -40.0, 1e-20
GROUP = 4  # interests that are worked on together: an item is loaded once for all of them


@compiled
def interests(
    iterations: int,
    items: Array,
    stops: Array,
    logits: Array,
    weight: Array,
    bias: Array,
    dense: Array,
    dense_bias: Array,
    found: Array,
) -> Any:
    """Write the interests of all histories to `found` `[B, K, d]`.

    The arguments are those of `routed_interests`; `dense` is `[0, d]` for no layer.

    Returns what `gradients` needs: mapped items `[P, d]`, routing weights `[P, K']` and capsules
    `[B, K, d]`, K' being K rounded up to full groups.
    """
    P, K = logits.shape
    B, d = stops.shape[0], weight.shape[0]
    full = (K + GROUP - 1) // GROUP * GROUP
    mapped = np.empty((P, d), dtype=np.float32)
    _fill_rows(mapped, bias)
    product_t(items, weight, mapped, 1)
    shares = np.empty((P, full), dtype=np.float32)
    layered = dense.shape[0] > 0
    capsules = np.empty((B, K, d), dtype=np.float32) if layered else found
    agreed = np.empty((P, full), dtype=np.float32)
    for p in range(P):
        for k in range(full):
            agreed[p, k] = logits[p, k] if k < K else np.float32(-np.inf)
    sums = np.empty((full, d), dtype=np.float32)
    start = 0
    for b in range(B):
        stop = stops[b]
        _route_one(mapped[start:stop], agreed[start:stop], iterations, shares[start:stop], sums)
        for k in range(K):
            for j in range(d):
                capsules[b, k, j] = sums[k, j]
        start = stop
    if layered:
        rows = found.reshape(B * K, d)
        _fill_rows(rows, dense_bias)
        product_t(capsules.reshape(B * K, d), dense, rows, 1)
        for r in range(B * K):
            for j in range(d):
                rows[r, j] = rows[r, j] if rows[r, j] > np.float32(0) else np.float32(0)
    return mapped, shares, capsules


@compiled
def _fill_rows(rows: Array, values: Array) -> None:
    """Write `values` `[d]` to every row of `rows` `[n, d]`."""
    for r in range(rows.shape[0]):
        for j in range(values.shape[0]):
            rows[r, j] = values[j]


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
        value = exponential(flat[x])
        flat[x] = value if flat[x] > LEAST_LOGIT else np.float32(0)
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
def gradients(
    grad: Array,
    chosen: Array,
    items: Array,
    stops: Array,
    weight: Array,
    dense: Array,
    found: Array,
    mapped: Array,
    shares: Array,
    capsules: Array,
    grad_items: Array,
    grad_weight: Array,
    grad_bias: Array,
    grad_dense: Array,
    grad_dense_bias: Array,
) -> None:
    """Write the gradients of items and parameters into zeros; routing weights carry none.

    `grad` `[R, d]` is the gradient of those interests that have any (with a hard readout one of a
    history), `chosen` `[R]` their places b K + k in `found`, rising. What follows are arguments
    and results of `interests`.
    """
    R, d = grad.shape
    K = found.shape[1]
    back = grad.copy()  # the gradient of the capsules
    if dense.shape[0] > 0:
        _back_through_layer(grad, chosen, found, capsules, dense, back, grad_dense, grad_dense_bias)
    w = items.shape[1]
    raw = np.zeros((R, w), dtype=np.float32)  # weighted sums of the items before the map
    sums = np.zeros((R, d), dtype=np.float32)  # and after it
    for r in range(R):
        b, k = chosen[r] // K, chosen[r] % K
        first = 0 if b == 0 else stops[b - 1]
        total = np.float32(0)
        for i in range(first, stops[b]):
            share = shares[i, k]
            total += share
            _add(raw[r], share, items[i])
            _add(sums[r], share, mapped[i])
        _back_through_squash(sums[r], back[r])
        _add(grad_bias, total, back[r])
    t_product(back, raw, grad_weight, 0)
    product(back, weight, raw, 0)  # the gradient of `raw` takes its place
    for r in range(R):
        b, k = chosen[r] // K, chosen[r] % K
        first = 0 if b == 0 else stops[b - 1]
        for i in range(first, stops[b]):
            _add(grad_items[i], shares[i, k], raw[r])


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


@compiled
def _back_through_layer(
    grad: Array,
    chosen: Array,
    found: Array,
    capsules: Array,
    dense: Array,
    back: Array,
    grad_dense: Array,
    grad_dense_bias: Array,
) -> None:
    """Gradients of the chosen capsules `[R, d]`, of the dense layer and of its bias."""
    K, d = found.shape[1:]
    seen = np.empty_like(back)
    through = np.empty_like(back)
    for r in range(chosen.shape[0]):
        b, k = chosen[r] // K, chosen[r] % K
        for j in range(d):
            seen[r, j] = capsules[b, k, j]
            through[r, j] = grad[r, j] if found[b, k, j] > np.float32(0) else np.float32(0)
            grad_dense_bias[j] += through[r, j]
    t_product(through, seen, grad_dense, 0)
    product(through, dense, back, 0)


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
