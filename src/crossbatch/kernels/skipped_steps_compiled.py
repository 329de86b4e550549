"""Compiled catching up of rows, one pass without temporaries: the inside of `SkippedSteps`."""

from __future__ import annotations

from typing import Any

from crossbatch.kernels.compiler import Array, compiled, inlined, intrinsic, np
from crossbatch.kernels.row_updates import AHEAD, prefetch_rows

prefetch_line = intrinsic("prefetch_line")

FADED = 1e-9  # a first moment that is left of one: no float32 weight sees it


@compiled
def catch_up(
    ids: Array,
    w: Array,
    m: Array,
    v: Array,
    touched: Array,
    step: int,
    sums: Array,
    decay: Array,
    beta2: float,
    eps: float,
    flat_from: int,
) -> bool:
    """Bring the rows `ids` `[n]` to `step`, as if every step since their last had moved them.

    w, m and v are weights and moments; the rest is as in `SkippedSteps`. Starts from `flat_from` on
    use the expansion around the mean of b. Returns False if an id is no row of the table.
    """
    epsilon, nothing = np.float32(eps), np.zeros(sums.shape[1])
    total, last_steps = np.empty(sums.shape[1]), touched.reshape(1, -1)
    for n in range(ids.shape[0]):
        if n + AHEAD < ids.shape[0]:  # requesting a row that is not there does no harm
            prefetch_rows(ids[n + AHEAD], w, m, v)
            # Everything else about a row waits for its last step, so this is asked for first.
            prefetch_line(last_steps, 0, ids[min(n + 2 * AHEAD, ids.shape[0] - 1)])
        row = ids[n]
        if not 0 <= row < w.shape[0]:
            return False
        start = touched[row]
        if start <= 0 or start >= step:  # never touched, or up to date
            continue
        gap = step - start
        touched[row] = step
        ahead = decay[gap] if gap < decay.shape[0] else nothing
        for k in range(total.shape[0]):
            total[k] = sums[start, k] - ahead[k] * sums[step, k]
        # β1^gap is in the table, and nothing beyond its end.
        shrink_m, shrink_v = np.float32(ahead[0]), np.float32(beta2**gap)
        weight, first, second = w[row], m[row], v[row]
        if total[0] > 0 and start < flat_from:
            _move_early(weight, first, second, total, epsilon, start, gap, sums, decay)
            for k in range(total.shape[0]):
                total[k] = 0
        b, A, S2, S3 = _around_mean(total)
        for k in range(weight.shape[0]):
            mean, square = first[k], second[k]
            weight[k] -= mean * _expansion(np.sqrt(square), b, A, S2, S3, epsilon)
            first[k], second[k] = shrink_m * mean, shrink_v * square
    return True


@inlined
def _around_mean(M: Array) -> Any:
    """b̄ and A, S2, S3 of power sums M_0 … M_3; zeros, and some b̄, of none."""
    b = M[1] / M[0] if M[0] > 0 else 1.0
    S2, S3 = M[2] - b * M[1], M[3] - 3 * b * M[2] + 2 * b * b * M[1]
    return np.float32(b), np.float32(M[0]), np.float32(S2), np.float32(S3)


@inlined
def _expansion(root: Any, b: Any, A: Any, S2: Any, S3: Any, eps: Any) -> Any:
    """Σ a/(b √v + ε) by the expansion A/(b̄ + r) + S2/(b̄ + r)³ − S3/(b̄ + r)⁴, r = ε/√v."""
    y = np.float32(1) / (b * root + eps)
    x = root * y  # 1 / (b̄ + r)
    return y * (A + x * x * (S2 - S3 * x))


@compiled
def _move_early(
    weight: Array,
    first: Array,
    second: Array,
    total: Array,
    eps: Any,
    start: int,
    gap: int,
    sums: Array,
    decay: Array,
) -> None:
    """Σ a/(b + r) as a series in r where that is small, else span by span."""
    i1, i2 = np.float32(total[4]), np.float32(total[5])
    i3, i4 = np.float32(total[6]), np.float32(total[7])
    least = (eps * i2 / (np.float32(0.01) * i1)) ** 2  # of v, for r to be small
    odd = 0
    for k in range(weight.shape[0]):
        odd += second[k] <= least
    # Numbers that the series does not suit come first: a loop with a branch is not vectorised.
    if odd > 0:
        spans, count = _spans(start, gap, sums, decay)
        for k in range(weight.shape[0]):
            if second[k] <= least:
                root, move = np.sqrt(second[k]), np.float32(0)
                for i in range(count):
                    b, A, S2, S3 = spans[i]
                    move += _expansion(root, b, A, S2, S3, eps)
                weight[k] -= move * first[k]
    for k in range(weight.shape[0]):
        root = np.sqrt(max(second[k], least))
        r = eps / root
        series = first[k] * (i1 - r * (i2 - r * (i3 - r * i4))) / root
        weight[k] -= series if second[k] > least else np.float32(0)


@compiled
def _spans(start: int, gap: int, sums: Array, decay: Array) -> Any:
    """`_around_mean` of spans of skipped steps `[count, 4]`, so short that b hardly changes in one.

    b falls as the root of the step early on: by a twentieth in a span that is a tenth of it.
    """
    last = min(gap, decay.shape[0] - 1)
    spans, count, here = np.empty((last, 4), dtype=np.float32), 0, 0
    M = np.empty(4)
    while here < last and decay[here, 0] > FADED:
        end = min(here + max(1, (start + here) // 10), last)
        for k in range(4):
            M[k] = decay[here, k] * sums[start + here, k] - decay[end, k] * sums[start + end, k]
        b, A, S2, S3 = _around_mean(M)
        spans[count, 0], spans[count, 1], spans[count, 2], spans[count, 3] = b, A, S2, S3
        count, here = count + 1, end
    return spans, count
