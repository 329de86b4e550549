"""Distinct ids in order, compiled by numba: a radix sort, where no branch has to be guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    Array = np.ndarray

BITS = 10  # of a digit: its counters fit the first-level cache


@njit(cache=True, error_model="numpy", nogil=True)
def sorted_distinct(ids: Array, highest: int) -> Array:
    """The distinct ones of `ids` `[n]`, int64 from 0 to `highest`, in ascending order."""
    source, target = ids.copy(), np.empty_like(ids)
    shift, last_bits = 0, (1 << BITS) - 1
    while highest >> shift > 0:
        starts = np.zeros(last_bits + 2, dtype=np.int64)  # of each digit in `target`
        for n in range(source.shape[0]):
            starts[((source[n] >> shift) & last_bits) + 1] += 1
        for digit in range(last_bits):
            starts[digit + 1] += starts[digit]
        for n in range(source.shape[0]):
            digit = (source[n] >> shift) & last_bits
            target[starts[digit]] = source[n]
            starts[digit] += 1
        source, target = target, source
        shift += BITS
    count = 0
    for n in range(source.shape[0]):
        if n == 0 or source[n] != source[n - 1]:
            target[count] = source[n]
            count += 1
    return target[:count]
