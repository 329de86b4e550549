"""Compiled softmax, one pass over each row while it is in the cache: inside `softmax_blocks`."""

from __future__ import annotations

from typing import Any

from crossbatch.kernels.compiler import (
    Array,
    compiled,
    compiled_reordered,
    intrinsic,
    np,
)

BUCKETS = 1024
LOWEST = -2139095041  # the rank of −inf

exponential, matrix_at = intrinsic("exponential"), intrinsic("matrix_at")
rank, of_rank = intrinsic("rank"), intrinsic("of_rank")
floats_of, part_of = intrinsic("floats_of"), intrinsic("part_of")
product, product_t = intrinsic("product"), intrinsic("product_t")
t_product = intrinsic("t_product")


@compiled_reordered
def multiply_columns(u: Array, own_rows: Array, groups: Array, block: Array) -> None:
    """Write the scores of queries `[p, d]` into `block` `[p, ≥ N]`.

    Behind the N columns stands the score of the own vector `[p, d]`; `own_rows` may be empty.

    `groups` `[g, 3]` has the columns of each group: address of the vectors, their number, address
    of the gradients or 0. With arrays it would be compiled anew for every number of groups.
    """
    P, d, at = u.shape[0], u.shape[1], 0
    for i in range(groups.shape[0]):
        n = groups[i, 1]
        product_t(u, matrix_at(groups[i, 0], n, d), part_of(block, 0, at, P, n), 0)
        at += n
    for p in range(own_rows.shape[0]):
        query, own, total = u[p], own_rows[p], np.float32(0)
        for k in range(d):
            total += query[k] * own[k]
        block[p, at] = total


@compiled_reordered
def multiply_back(
    block: Array,
    u: Array,
    own_rows: Array,
    groups: Array,
    keep: bool,
    grad_users: Array,
    grad_own: Array,
) -> None:
    """Write the gradients that those of scores give to the factors of `multiply_columns`.

    Those of columns are added to what is there if it is to be kept.
    """
    P, d, at = u.shape[0], u.shape[1], 0
    for i in range(groups.shape[0]):
        n, place = groups[i, 1], groups[i, 2]
        pulls = part_of(block, 0, at, P, n)
        product(pulls, matrix_at(groups[i, 0], n, d), grad_users, at > 0)
        if place:
            t_product(pulls, u, matrix_at(place, n, d), keep)
        at += n
    for p in range(own_rows.shape[0]):
        pull, query, own, of_query, of_own = (
            block[p, at],
            u[p],
            own_rows[p],
            grad_users[p],
            grad_own[p],
        )
        for k in range(d):
            of_query[k] += pull * own[k]
            of_own[k] = pull * query[k]


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
    chains: Array,
    losses: Array,
    pulls: Array,
) -> None:
    """Turn scores into the gradients of the losses, in place, and write the losses `[b]`.

    `pulls` `[p]` become the gradients of the log-weights. `own` is the column of the first row's
    own positive, or −1 where its score stands behind the columns. `exclude` may be empty, `chains`
    is that of `_drop_matches`.
    """
    N = column_keys.shape[0]
    first, step = own, 1  # column of the row's own positive
    if own < 0:
        first, step = N, 0
    start = 0
    for r in range(stops.shape[0]):
        for p in range(start, stops[r]):  # the own logits, for now
            pulls[p] = block[p, first + step * r] + log_weights[p] - own_log_q[r]
        start = stops[r]
    _drop_matches(block, stops, row_keys, column_keys, chains)
    start = 0
    for r in range(stops.shape[0]):
        own_peak = peak = np.float32(-np.inf)
        for p in range(start, stops[r]):
            row = floats_of(block[p], 0, N)
            for c in range(exclude.shape[1]):
                row[c] = np.float32(-np.inf) if exclude[r, c] else row[c]
            own_peak = max(own_peak, pulls[p])
            peak = max(peak, _correct(row, log_q) + log_weights[p])
        peak, own_total = max(peak, own_peak), np.float32(0)
        for p in range(start, stops[r]):
            own_total += np.exp(pulls[p] - own_peak)
        own_logit = own_peak + np.log(own_total)
        total = np.exp(own_logit - peak)
        for p in range(start, stops[r]):
            total += exponentials(floats_of(block[p], 0, N), peak - log_weights[p])
        losses[r] = np.log(total) + (peak - own_logit)
        share, pull = scale[r] / total, scale[r] * np.expm1(-losses[r])
        for p in range(start, stops[r]):
            mass = _scaled(floats_of(block[p], 0, N), share)
            pulls[p] = pull * np.exp(pulls[p] - own_logit)
            block[p, first + step * r] = pulls[p]
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
    chains: Array,
    peaks: Array,
    masses: Array,
    factors: Array,
) -> None:
    """Turn scores of a tile of columns into e^(logit − peak), in place; see `softmax_streamed`.

    `peaks` `[p]` and `masses` `[p]` are the largest logit and the sum of these exponentials over
    all tiles so far; `factors` `[p]` become what earlier exponentials are to be multiplied by.
    `chains` is that of `_drop_matches`.
    """
    _drop_matches(scores, stops, row_keys, column_keys, chains)
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
def _drop_matches(
    block: Array, stops: Array, row_keys: Array, column_keys: Array, chains: Array
) -> None:
    """−inf where a column carries the row's key.

    Rows are chained by the last bits of theirs; `chains` is memory for `BUCKETS` + b int32.
    """
    for bucket in range(BUCKETS):
        chains[bucket] = -1
    for r in range(row_keys.shape[0]):
        bucket = row_keys[r] & (BUCKETS - 1)
        chains[BUCKETS + r] = chains[bucket]
        chains[bucket] = r
    for c in range(column_keys.shape[0]):
        r = chains[column_keys[c] & (BUCKETS - 1)]
        while r >= 0:
            if row_keys[r] == column_keys[c]:
                start = 0
                if r > 0:
                    start = stops[r - 1]
                for p in range(start, stops[r]):
                    block[p, c] = -np.inf
            r = chains[BUCKETS + r]


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
    """Subtract log q in place; return the maximum."""
    highest = np.int32(LOWEST)
    for c in range(row.shape[0]):
        row[c] -= log_q[c]
        place = rank(row[c])
        if place > highest:
            highest = place
    return of_rank(highest)


@compiled_reordered
def exponentials(row: Array, peak: Any) -> Any:
    """e^(row − peak) in place; return the sum."""
    total = np.float32(0)
    for c in range(row.shape[0]):
        row[c] = exponential(row[c] - peak)
        total += row[c]
    return total
