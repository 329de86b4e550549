"""The softmax over columns compiled by numba: one pass over a row while it is in the cache.

Correction, mask, maximum, exponentials and sum are nine passes over `[B, N]` as torch operations.
`FusedLosses` uses those where numba is not installed, and tests hold the two against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from crossbatch.kernels.activations import bits_as_float, exponential, float_as_bits
from crossbatch.kernels.products import product, product_t, t_product

if TYPE_CHECKING:
    Array = np.ndarray

BUCKETS = 1024
CACHED = 1 << 20  # scores that stay in the cache between the products and the softmax
FEWEST_ROWS = 128  # of a block: with fewer, products would wait for the columns
CACHE_LINE = 16  # float32 values
LOWEST = -2139095041  # the turned bits of −inf
NOTHING = np.empty((0, 0), dtype=np.bool_)  # for `exclude`


@njit(cache=True, error_model="numpy", nogil=True)
def loss_and_gradients(
    users: Array,
    temperature: float,
    own_vectors: Array,
    parts: tuple[Array, ...],
    pushes: tuple[float, ...],
    log_q: Array,
    row_keys: Array,
    column_keys: Array,
    exclude: Array,
    own_log_q: Array,
    own: int,
    grad_users: Array,
    grad_own: Array,
    grad_parts: tuple[Array, ...],
) -> float:
    """The mean loss, and its gradients, in one call.

    Args:
        users: `[B, d]`.
        temperature: Divides the scores.
        own_vectors: `[B, d]` of the rows' own positives; only read if `own` is −1.
        parts: `[n_i, d]` vectors of the columns, N in all.
        pushes: Factor of each part's gradient.
        log_q: As in `softmax_rows`.
        row_keys: As in `softmax_rows`.
        column_keys: As in `softmax_rows`.
        exclude: As in `softmax_rows`.
        own_log_q: As in `softmax_rows`.
        own: As in `softmax_rows`.
        grad_users: `[B, d]`, written.
        grad_own: As `own_vectors`, written if `own` is −1.
        grad_parts: As `parts`, written; `[0, d]` for those that need none.
    """
    B, N = users.shape[0], column_keys.shape[0]
    u = users / np.float32(temperature)
    # Rows start at full cache lines, or the products would take an eighth longer.
    width = (N // CACHE_LINE + 1) * CACHE_LINE
    rows = min(B, max(FEWEST_ROWS, CACHED // width))
    block, losses = np.empty((rows, width), dtype=np.float32), np.empty(B, dtype=np.float32)
    for start in range(0, B, rows):
        stop = min(start + rows, B)
        _some_rows(
            u[start:stop], own_vectors[start:stop], parts, log_q, row_keys[start:stop], column_keys,
            exclude[start:stop], own_log_q[start:stop], own + start if own >= 0 else -1, 1 / B,
            block[: stop - start], losses[start:stop],
            grad_users[start:stop], grad_own[start:stop], grad_parts, 0 if start == 0 else 1,
        )  # fmt: skip
    for i in range(len(parts)):
        if pushes[i] != 1:
            grad_parts[i][:] *= np.float32(pushes[i])
    if temperature != 1:
        grad_users /= np.float32(temperature)
    mean = 0.0
    for r in range(B):
        mean += losses[r] / B
    return mean


@njit(cache=True, error_model="numpy", nogil=True)
def _some_rows(
    u: Array,
    own_vectors: Array,
    parts: tuple[Array, ...],
    log_q: Array,
    row_keys: Array,
    column_keys: Array,
    exclude: Array,
    own_log_q: Array,
    own: int,
    scale: float,
    block: Array,
    losses: Array,
    grad_users: Array,
    grad_own: Array,
    grad_parts: tuple[Array, ...],
    keep: float,
) -> None:
    """`loss_and_gradients` of some rows; gradients of columns are added to `keep` times theirs."""
    N = column_keys.shape[0]
    first = 0
    for part in parts:
        product_t(u, part, block[:, first : first + part.shape[0]], 0)
        first += part.shape[0]
    if own < 0:
        for r in range(u.shape[0]):
            block[r, N] = _dot(u[r], own_vectors[r])
    softmax_rows(block, log_q, row_keys, column_keys, exclude, own_log_q, own, scale, losses)
    first = 0
    for i in range(len(parts)):
        part, grad = parts[i], grad_parts[i]
        place = block[:, first : first + part.shape[0]]
        product(place, part, grad_users, 0 if i == 0 else 1)
        if grad.shape[0] > 0:
            t_product(place, u, grad, keep)
        first += part.shape[0]
    if own < 0:
        for r in range(u.shape[0]):
            pull = block[r, N]
            for k in range(u.shape[1]):
                grad_users[r, k] += pull * own_vectors[r, k]
                grad_own[r, k] = pull * u[r, k]


@njit(fastmath={"contract", "reassoc"}, cache=True, error_model="numpy", nogil=True)
def _dot(a: Array, b: Array) -> np.float32:
    total = np.float32(0)
    for k in range(a.shape[0]):
        total += a[k] * b[k]
    return total


@njit(fastmath={"contract", "reassoc"}, cache=True, error_model="numpy", nogil=True)
def softmax_rows(
    block: Array,
    log_q: Array,
    row_keys: Array,
    column_keys: Array,
    exclude: Array,
    own_log_q: Array,
    own: int,
    scale: float,
    losses: Array,
) -> None:
    """Turn scores into the gradients of the losses, in place.

    Args:
        block: `[B, >= N + 1]`; scores u·v in the first N columns, afterwards probabilities, and
            p − 1 for the row's own positive. What follows the columns is left alone.
        log_q: `[N]`.
        row_keys: `[B]`; a column is no negative of the rows whose key it carries.
        column_keys: `[N]`.
        exclude: `[B, N]` bool of further columns that are no negatives, or `NOTHING`.
        own_log_q: `[B]` log q of the rows' own positives.
        own: Column of the first row's own positive, that of the second row being the next one, or
            −1: column N for all rows.
        scale: Factor of the gradients.
        losses: `[B]`, written.
    """
    B, N = block.shape[0], column_keys.shape[0]
    for r in range(B):
        losses[r] = block[r, N if own < 0 else own + r] - own_log_q[r]  # the own logit, for now
    _drop_matches(block, row_keys, column_keys)
    for r in range(exclude.shape[0]):
        for c in range(N):
            block[r, c] = np.float32(-np.inf) if exclude[r, c] else block[r, c]
    for r in range(B):
        row, own_logit = block[r, :N], losses[r]
        peak = max(_correct(row, log_q), own_logit)
        total = _exponentials(row, peak) + np.exp(own_logit - peak)
        share = np.float32(scale) / total
        for c in range(N):
            row[c] *= share
        losses[r] = np.log(total) + (peak - own_logit)
        block[r, N if own < 0 else own + r] = np.float32(scale) * np.expm1(-losses[r])


@njit(cache=True, error_model="numpy", nogil=True)
def _drop_matches(block: Array, row_keys: Array, column_keys: Array) -> None:
    """−inf where a column carries the row's key; rows are chained by the last bits of theirs."""
    last_bits = BUCKETS - 1
    head = np.full(BUCKETS, -1, dtype=np.int32)
    following = np.empty(row_keys.shape[0], dtype=np.int32)
    for r in range(row_keys.shape[0]):
        bucket = row_keys[r] & last_bits
        following[r] = head[bucket]
        head[bucket] = r
    for c in range(column_keys.shape[0]):
        r = head[column_keys[c] & last_bits]
        while r >= 0:
            if row_keys[r] == column_keys[c]:
                block[r, c] = -np.inf
            r = following[r]


@njit(fastmath={"contract"}, cache=True, error_model="numpy", nogil=True)
def _correct(row: Array, log_q: Array) -> np.float32:
    """Subtract log q in place; return the maximum.

    Of integers, because a running maximum of floats is not vectorised: with the bits of negative
    numbers turned around, floats are in the order of their bits.
    """
    highest = np.int32(LOWEST)
    for c in range(row.shape[0]):
        row[c] -= log_q[c]
        highest = max(highest, _turned(float_as_bits(row[c])))
    peak: np.float32 = bits_as_float(_turned(highest))
    return peak


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def _turned(bits: np.int32) -> np.int32:
    return bits ^ ((bits >> np.int32(31)) & np.int32(2**31 - 1))


@njit(fastmath={"contract", "reassoc"}, cache=True, error_model="numpy", nogil=True)
def _exponentials(row: Array, peak: np.float32) -> np.float32:
    """e^(row − peak) in place; return the sum."""
    total = np.float32(0)
    for c in range(row.shape[0]):
        row[c] = exponential(row[c] - peak)
        total += row[c]
    return total
