"""Exponential functions inside compiled loops, written so that the loops are vectorised.

The compiler calls a library for `math.exp`, one number at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic


def _reinterpreted(source: Any, target: Any) -> Any:
    """A function of a number that keeps its bits and changes its type."""

    def typed(typing_context: Any, value: Any) -> Any:
        del typing_context, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(typed)


bits_as_float = _reinterpreted(types.int32, types.float32)
float_as_bits = _reinterpreted(types.float32, types.int32)


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def exponential(x: np.float32) -> np.float32:
    """e^x for x ≤ 88, to two units in the last place; 0 below −87.

    e^x = 2^n e^r with n the nearest integer to x log2 e; e^r by its series to the sixth order.
    """
    bounded = np.float32(-88) if x < np.float32(-88) else x  # what is no number is not below
    n = np.float32(np.rint(bounded * np.float32(1.4426950408889634)))
    r = bounded - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    series = np.float32(1 / 720)
    series = series * r + np.float32(1 / 120)
    series = series * r + np.float32(1 / 24)
    series = series * r + np.float32(1 / 6)
    series = series * r + np.float32(0.5)
    series = series * r + np.float32(1)
    series = series * r + np.float32(1)
    value = series * bits_as_float((np.int32(n) + np.int32(127)) << np.int32(23))
    return np.float32(0) if bounded < np.float32(-87) else np.float32(value)


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def sigmoid(x: np.float32) -> np.float32:
    """1 / (1 + e^−x)."""
    bounded = np.float32(-87) if x < np.float32(-87) else x
    return np.float32(1) / (np.float32(1) + exponential(-bounded))


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def tanh(x: np.float32) -> np.float32:
    """Tanh x; by its series where 1 − e^−2x would lose digits."""
    square = x * x
    series = np.float32(62 / 2835)
    series = series * square - np.float32(17 / 315)
    series = series * square + np.float32(2 / 15)
    series = series * square - np.float32(1 / 3)
    series = series * square * x + x
    size = abs(x)
    e = exponential(np.float32(-2) * size)
    ratio = (np.float32(1) - e) / (np.float32(1) + e)
    ratio = ratio if x > np.float32(0) else -ratio
    return series if size < np.float32(0.3) else ratio
