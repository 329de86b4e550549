"""Compiled softmax, one pass over each row while it is in the cache: inside `softmax_blocks`."""

from __future__ import annotations

from typing import Any

from crossbatch.kernels.compiler import (
    Array,
    compiled,
    compiled_reordered,
    inlined,
    intrinsic,
    np,
)

BUCKETS = 1024
LOWEST = -2139095041  # the ordered bits of −inf

exponential, float_as_bits = intrinsic("exponential"), intrinsic("float_as_bits")
bits_as_float, matrix_at = intrinsic("bits_as_float"), intrinsic("matrix_at")
product, product_t = intrinsic("product"), intrinsic("product_t")
t_product = intrinsic("t_product")


@compiled_reordered
def blocks(
    rows: int,
    u: Array,
    own_rows: Array,
    groups: Array,
    log_weights: Array,
    stops: Array,
    log_q: Array,
    row_keys: Array,
    column_keys: Array,
    exclude: Array,
    own_log_q: Array,
    own: int,
    scale: Array,
    block: Array,
    losses: Array,
    grad_users: Array,
    grad_own: Array,
    grad_log_weights: Array,
) -> None:
    """`softmax_blocks`; `own` is −1 for own vectors beside the columns, `exclude` may be empty.

    `groups` `[g, 3]` has the columns of each group: address of the vectors, their number, address
    of the gradients or 0. With arrays it would be compiled anew for every number of groups.
    """
    B, N, d = stops.shape[0], column_keys.shape[0], u.shape[1]
    start = 0
    for first in range(0, B, rows):
        last = min(first + rows, B)
        end = stops[last - 1]
        some, scores, at = u[start:end], block[: end - start], 0
        for i in range(groups.shape[0]):
            vectors, n = groups[i, 0], groups[i, 1]
            product_t(some, matrix_at(vectors, n, d), scores[:, at : at + n], 0)
            at += n
        for p in range(scores.shape[0] if own < 0 else 0):
            total = np.float32(0)
            for k in range(d):
                total += some[p, k] * own_rows[start + p, k]
            scores[p, N] = total
        softmax_rows(
            scores, log_weights[start:end], stops[first:last] - start, log_q, row_keys[first:last],
            column_keys, exclude[first:last], own_log_q[first:last],
            own + first if own >= 0 else -1, scale[first:last], losses[first:last],
            grad_log_weights[start:end],
        )  # fmt: skip
        if grad_users.shape[0] > 0:
            at = 0
            for i in range(groups.shape[0]):
                vectors, n, gradients = groups[i, 0], groups[i, 1], groups[i, 2]
                place = scores[:, at : at + n]
                product(place, matrix_at(vectors, n, d), grad_users[start:end], 0 if i == 0 else 1)
                if gradients:
                    t_product(place, some, matrix_at(gradients, n, d), 0 if first == 0 else 1)
                at += n
            for p in range(scores.shape[0] if own < 0 else 0):
                pull = scores[p, N]
                for k in range(d):
                    grad_users[start + p, k] += pull * own_rows[start + p, k]
                    grad_own[start + p, k] = pull * some[p, k]
        start = end


@compiled_reordered
def softmax_rows(
    block: Array,
    log_weights: Array,
    stops: Array,
    log_q: Array,
    row_keys: Array,
    column_keys: Array,
    exclude: Array,
    own_log_q: Array,
    own: int,
    scale: Array,
    losses: Array,
    pulls: Array,
) -> None:
    """Turn scores into the gradients of the losses, in place, and write the losses `[b]`.

    `pulls` `[p]` become the gradients of the log-weights. `own` is the column of the first row's
    own positive, or −1 where its score stands behind the columns.
    """
    B, N = stops.shape[0], column_keys.shape[0]
    start = 0
    for r in range(B):
        for p in range(start, stops[r]):  # the own logits, for now
            pulls[p] = block[p, N if own < 0 else own + r] + log_weights[p] - own_log_q[r]
        start = stops[r]
    _drop_matches(block, stops, row_keys, column_keys)
    start = 0
    for r in range(exclude.shape[0]):
        for p in range(start, stops[r]):
            for c in range(N):
                block[p, c] = np.float32(-np.inf) if exclude[r, c] else block[p, c]
        start = stops[r]
    start = 0
    for r in range(B):
        own_peak = peak = np.float32(-np.inf)
        for p in range(start, stops[r]):
            own_peak = max(own_peak, pulls[p])
            peak = max(peak, _correct(block[p, :N], log_q) + log_weights[p])
        peak, own_total = max(peak, own_peak), np.float32(0)
        for p in range(start, stops[r]):
            own_total += np.exp(pulls[p] - own_peak)
        own_logit = own_peak + np.log(own_total)
        total = np.exp(own_logit - peak)
        for p in range(start, stops[r]):
            total += exponentials(block[p, :N], peak - log_weights[p])
        losses[r] = np.log(total) + (peak - own_logit)
        share, pull = scale[r] / total, scale[r] * np.expm1(-losses[r])
        for p in range(start, stops[r]):
            mass = _scaled(block[p, :N], share)
            pulls[p] = pull * np.exp(pulls[p] - own_logit)
            block[p, N if own < 0 else own + r] = pulls[p]
            pulls[p] += mass
        start = stops[r]


@compiled_reordered
def fold(
    scores: Array,
    stops: Array,
    log_q: Array,
    row_keys: Array,
    column_keys: Array,
    exclude: Array,
    peaks: Array,
    masses: Array,
    factors: Array,
) -> None:
    """Turn scores of a tile of columns into e^(logit − peak), in place; see `softmax_streamed`.

    `peaks` `[p]` and `masses` `[p]` are the largest logit and the sum of these exponentials over
    all tiles so far; `factors` `[p]` become what earlier exponentials are to be multiplied by.
    """
    _drop_matches(scores, stops, row_keys, column_keys)
    start = 0
    for r in range(exclude.shape[0]):
        for p in range(start, stops[r]):
            for c in range(exclude.shape[1]):
                scores[p, c] = np.float32(-np.inf) if exclude[r, c] else scores[p, c]
        start = stops[r]
    for p in range(scores.shape[0]):
        highest = max(peaks[p], _correct(scores[p], log_q))
        if highest == -np.inf:  # nothing yet that counts
            for c in range(scores.shape[1]):
                scores[p, c] = 0
            factors[p] = 1
            continue
        factors[p] = np.exp(peaks[p] - highest)
        masses[p] = masses[p] * factors[p] + exponentials(scores[p], highest)
        peaks[p] = highest


@compiled
def _drop_matches(block: Array, stops: Array, row_keys: Array, column_keys: Array) -> None:
    """−inf where a column carries the row's key; rows are chained by the last bits of theirs."""
    last_bits = BUCKETS - 1
    head = np.empty(BUCKETS, dtype=np.int32)
    for bucket in range(BUCKETS):
        head[bucket] = -1
    following = np.empty(row_keys.shape[0], dtype=np.int32)
    for r in range(row_keys.shape[0]):
        bucket = row_keys[r] & last_bits
        following[r] = head[bucket]
        head[bucket] = r
    for c in range(column_keys.shape[0]):
        r = head[column_keys[c] & last_bits]
        while r >= 0:
            if row_keys[r] == column_keys[c]:
                for p in range(0 if r == 0 else stops[r - 1], stops[r]):
                    block[p, c] = -np.inf
            r = following[r]


@compiled_reordered
def _scaled(row: Array, factor: Any) -> Any:
    """Multiply in place; return the sum."""
    total = np.float32(0)
    for c in range(row.shape[0]):
        row[c] *= factor
        total += row[c]
    return total


@compiled
def _correct(row: Array, log_q: Array) -> Any:
    """Subtract log q in place; return the maximum.

    Of integers, because a running maximum of floats is not vectorised: with the bits of negative
    numbers flipped, floats are in the order of their bits.
    """
    highest = np.int32(LOWEST)
    for c in range(row.shape[0]):
        row[c] -= log_q[c]
        highest = max(highest, ordered(float_as_bits(row[c])))
    return bits_as_float(ordered(highest))


@inlined
def ordered(bits: Any) -> Any:
    """The bits of a float as an integer that is in the order of the floats; and back."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(2**31 - 1))


@compiled_reordered
def exponentials(row: Array, peak: Any) -> Any:
    """e^(row − peak) in place; return the sum."""
    total = np.float32(0)
    for c in range(row.shape[0]):
        row[c] = exponential(row[c] - peak)
        total += row[c]
    return total
