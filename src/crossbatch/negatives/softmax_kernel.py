"""The softmax over columns compiled by numba: one pass over a row while it is in the cache.

Correction, mask, maximum, exponentials and sum are nine passes over `[B, N]` as torch operations.
`FusedLosses` uses those where numba is not installed, and tests hold the two against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

if TYPE_CHECKING:
    Array = np.ndarray

BUCKETS = 1024
LOWEST = -2139095041  # the turned bits of −inf


@njit(fastmath={"contract", "reassoc"}, cache=True, error_model="numpy", nogil=True)
def softmax_rows(
    block: Array,
    log_q: Array,
    row_keys: Array,
    column_keys: Array,
    own_log_q: Array,
    own: int,
    losses: Array,
) -> None:
    """Turn scores into the gradients of the losses, in place.

    Args:
        block: `[B, >= N + 1]`; scores u·v in the first N columns, afterwards probabilities, and
            p − 1 for the row's own positive. What follows the columns is left alone.
        log_q: `[N]`.
        row_keys: `[B]`; a column is no negative of the rows whose key it carries.
        column_keys: `[N]`.
        own_log_q: `[B]` log q of the rows' own positives.
        own: Column of the first row's own positive, that of the second row being the next one, or
            −1: column N for all rows.
        losses: `[B]`, written.
    """
    B, N = block.shape[0], column_keys.shape[0]
    for r in range(B):
        losses[r] = block[r, N if own < 0 else own + r] - own_log_q[r]  # the own logit, for now
    _drop_matches(block, row_keys, column_keys)
    for r in range(B):
        row, own_logit = block[r, :N], losses[r]
        peak = max(_correct(row, log_q), own_logit)
        total = _exponentials(row, peak) + np.exp(own_logit - peak)
        share = np.float32(1) / total
        for c in range(N):
            row[c] *= share
        losses[r] = np.log(total) + (peak - own_logit)
        block[r, N if own < 0 else own + r] = np.expm1(-losses[r])


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
        highest = max(highest, _turned(_as_int(row[c])))
    peak: np.float32 = _as_float(_turned(highest))
    return peak


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def _turned(bits: np.int32) -> np.int32:
    return bits ^ ((bits >> np.int32(31)) & np.int32(2**31 - 1))


@njit(fastmath={"contract", "reassoc"}, cache=True, error_model="numpy", nogil=True)
def _exponentials(row: Array, peak: np.float32) -> np.float32:
    """e^(row − peak) in place; return the sum.

    e^x = 2^n e^r with n the nearest integer to x log2 e; e^r by its series to the sixth order,
    which for |r| ≤ ln 2 / 2 is exact to two units in the last place.
    """
    total = np.float32(0)
    for c in range(row.shape[0]):
        # Below e^-87 float32 has nothing but denormals, which are 0 here. NaN is not below.
        x = row[c] - peak
        x = np.float32(-88) if x < np.float32(-88) else x
        n = np.float32(np.rint(x * np.float32(1.4426950408889634)))
        r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
        series = np.float32(1 / 720)
        series = series * r + np.float32(1 / 120)
        series = series * r + np.float32(1 / 24)
        series = series * r + np.float32(1 / 6)
        series = series * r + np.float32(0.5)
        series = series * r + np.float32(1)
        series = series * r + np.float32(1)
        value = series * _power_of_two(np.int32(n))
        row[c] = np.float32(0) if x < np.float32(-87) else value
        total += row[c]
    return total


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def _power_of_two(n: np.int32) -> np.float32:
    """2^n for −127 ≤ n ≤ 127, by writing the exponent bits; 0 at −127."""
    power: np.float32 = _as_float((n + np.int32(127)) << np.int32(23))
    return power


def _reinterpreted(source: Any, target: Any) -> Any:
    """A function of a number that keeps its bits and changes its type."""

    def typed(typing_context: Any, value: Any) -> Any:
        del typing_context, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(typed)


_as_float = _reinterpreted(types.int32, types.float32)
_as_int = _reinterpreted(types.float32, types.int32)
