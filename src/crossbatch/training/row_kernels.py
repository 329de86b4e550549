"""Row updates compiled by numba: one pass over the rows that a batch touched, no temporaries.

`RowAdam` does the same with torch operations where numba is not installed, and tests hold the two
against each other. Arrays are `w`, `m`, `v` `[R, d]` float32 and `touched` `[R]` int32.

The rows lie anywhere in tables much larger than any cache, so the time goes into waiting for
memory. Each kernel therefore asks for the rows it will need a little later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
from numba import njit

from crossbatch.kernels.memory import copy, floats_at, prefetch_line

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray

Kernel = TypeVar("Kernel", bound="Callable[..., object]")


def compiled(function: Kernel) -> Kernel:
    """Compile on first use and keep the result on disk."""
    # NumPy's division by zero (no branch per element) and fused multiply-adds: both vectorise.
    compile_ = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
    return cast("Kernel", compile_(function))


AHEAD = 6  # rows asked for before they are needed
SCATTER = 2_654_435_761  # an odd number near 2³²/φ: neighbours get far from each other
LINE = 16  # float32 values of a cache line
FADED = 1e-9  # a first moment that is left of one: no float32 weight sees it


@compiled
def _prefetch(row: int, w: Array, m: Array, v: Array) -> None:
    for k in range(0, w.shape[1], LINE):
        prefetch_line(w, row, k)
        prefetch_line(m, row, k)
        prefetch_line(v, row, k)


@compiled
def add_up(
    ids: Array,
    bags: Array,
    per_bag: int,
    gradient: Array,
    first: int,
    padding: int,
    places: Array,
    rows: Array,
    sources: Array,
    totals: Array,
    count: int,
) -> int:
    """Add one read to the distinct rows and the sums of their gradients.

    Most rows are read once: their sum is the gradient where it lies, and is not copied.

    Args:
        ids: `[n]` rows of the table.
        bags: `[n]` rows of `gradient`, or empty:
        per_bag: number of consecutive ids for each row of `gradient`.
        gradient: `[m, >= first + d]`; to be kept until the sums are used.
        first: Its first column that counts.
        padding: Row to leave out, or −1.
        places: Hash table of a power of two of int32, more than there are ids: where in `rows` a
            row is, −1 for nothing. It stays in the cache, which a number for each row would not.
        rows: `[>= count + n]` int64, distinct rows so far.
        sources: `[>= count + n]` int64, addresses of the sums of their gradients.
        totals: `[>= count + n, d]` memory for sums of several.
        count: Number of rows so far.

    Returns:
        The number of rows.
    """
    d, last_bits = totals.shape[1], places.shape[0] - 1
    for n in range(ids.shape[0]):
        row = ids[n]
        if row == padding:
            continue
        source = gradient[bags[n] if bags.shape[0] else n // per_bag, first : first + d]
        place = ((row * SCATTER) >> 16) & last_bits
        while places[place] >= 0 and rows[places[place]] != row:
            place = (place + 1) & last_bits
        slot = places[place]
        if slot < 0:
            places[place] = count
            rows[count] = row
            sources[count] = source.ctypes.data
            count += 1
        else:
            total = totals[slot]
            if sources[slot] != total.ctypes.data:
                copy(floats_at(sources[slot], d), total)
                sources[slot] = total.ctypes.data
            for k in range(d):
                total[k] += source[k]
    return count


# Part of its callers: a call for every row would keep the next row's memory waiting.
@njit(inline="always", cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
def move(weight: Array, first: Array, second: Array, g: Array, rates: tuple[float, ...]) -> None:
    """One Adam step of numbers `[k]` and their moments by a gradient; rates as in `adam`."""
    lr, inertia = np.float32(rates[0]), np.float32(rates[1])
    beta2, renewal = np.float32(rates[2]), np.float32(rates[3])
    scale, eps, shrink = np.float32(rates[4]), np.float32(rates[5]), np.float32(rates[6])
    for k in range(g.shape[0]):
        # What is stored is not read again, or long loops would take twice the time.
        mean = first[k] + inertia * (g[k] - first[k])
        square = beta2 * second[k] + renewal * g[k] * g[k]
        first[k], second[k] = mean, square
        weight[k] = shrink * weight[k] - lr * mean / (np.sqrt(square) * scale + eps)


@compiled
def adam(
    count: int,
    rows: Array,
    sources: Array,
    w: Array,
    m: Array,
    v: Array,
    touched: Array,
    step: int,
    rates: tuple[float, ...],
) -> None:
    """One Adam step of rows by their gradients.

    Args:
        count: Number of rows.
        rows: Distinct rows `[>= count]`.
        sources: Addresses `[>= count]` of their gradients `[d]`.
        w: Weights.
        m: First moments.
        v: Second moments.
        touched: Last step of each row.
        step: This step.
        rates: lr/(1 − β1^t), 1 − β1, β2, 1 − β2, 1/√(1 − β2^t), ε, 1 − lr·decay. Each is rounded
            once: 1 − β2 of a rounded β2 would be off by 1e-5.
    """
    for n in range(count):
        if n + AHEAD < count:
            _prefetch(rows[n + AHEAD], w, m, v)
        row = rows[n]
        touched[row] = step
        move(w[row], m[row], v[row], floats_at(sources[n], w.shape[1]), rates)


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True)
def adagrad(
    count: int,
    rows: Array,
    sources: Array,
    w: Array,
    squares: Array,
    lr: float,
    eps: float,
) -> None:
    """One step of row-wise Adagrad.

    Args:
        count: As in `adam`.
        rows: As in `adam`.
        sources: As in `adam`.
        w: Weights.
        squares: `[R]` sums of mean squares.
        lr: Learning rate.
        eps: ε.
    """
    sums, d = squares.reshape(1, -1), w.shape[1]
    for n in range(count):
        if n + AHEAD < count:
            for k in range(0, d, LINE):
                prefetch_line(w, rows[n + AHEAD], k)
            prefetch_line(sums, 0, rows[n + AHEAD])
        row, g = rows[n], floats_at(sources[n], d)
        square = np.float32(0)
        for k in range(d):
            square += g[k] * g[k]
        squares[row] += square / np.float32(d)
        rate, weight = np.float32(lr) / (np.sqrt(squares[row]) + np.float32(eps)), w[row]
        for k in range(d):
            weight[k] -= rate * g[k]


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
) -> None:
    """Bring the rows `ids` `[n]` to `step`, as if every step since their last had moved them.

    Args:
        ids: Rows, repeats welcome.
        w: Weights.
        m: First moments.
        v: Second moments.
        touched: Last step of each row; 0 for never, and such rows stay.
        step: Step to reach.
        sums: As in `SkippedSteps`.
        decay: As in `SkippedSteps`.
        beta2: β2.
        eps: ε.
        flat_from: First start whose expansion around the mean of b is exact.
    """
    epsilon, nothing = np.float32(eps), np.zeros(sums.shape[1])
    total, last_steps = np.empty(sums.shape[1]), touched.reshape(1, -1)
    for n in range(ids.shape[0]):
        if n + AHEAD < ids.shape[0]:
            _prefetch(ids[n + AHEAD], w, m, v)
            # Everything else about a row waits for its last step, so this is asked for first.
            prefetch_line(last_steps, 0, ids[min(n + 2 * AHEAD, ids.shape[0] - 1)])
        row = ids[n]
        start = touched[row]
        if start == 0 or start == step:
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
            total[:] = 0
        b, A, S2, S3 = _around_mean(total)
        for k in range(weight.shape[0]):
            mean, square = first[k], second[k]
            weight[k] -= mean * _expansion(np.sqrt(square), b, A, S2, S3, epsilon)
            first[k], second[k] = shrink_m * mean, shrink_v * square


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def _around_mean(M: Array) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    """b̄ and A, S2, S3 of power sums M_0 … M_3; zeros, and some b̄, of none."""
    b = M[1] / M[0] if M[0] > 0 else 1.0
    S2, S3 = M[2] - b * M[1], M[3] - 3 * b * M[2] + 2 * b * b * M[1]
    return np.float32(b), np.float32(M[0]), np.float32(S2), np.float32(S3)


@njit(inline="always", cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
def _expansion(
    root: np.float32,
    b: np.float32,
    A: np.float32,
    S2: np.float32,
    S3: np.float32,
    eps: np.float32,
) -> np.float32:
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
    eps: np.float32,
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
def _spans(start: int, gap: int, sums: Array, decay: Array) -> tuple[Array, int]:
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
