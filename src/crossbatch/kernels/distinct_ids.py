"""The distinct ones of some ids, in ascending order: a radix sort, without branches to guess."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossbatch.kernels.compiler import Array, array, check_ids, compiled, np, usable

OUT_OF_RANGE = "ids must be between 0 and {}, the highest one given"
BITS = 10  # of a digit: its counters fit the first-level cache


def definition(ids: Tensor, highest: int) -> Tensor:
    """As `distinct_ids`."""
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) <= highest:
        raise ValueError(OUT_OF_RANGE.format(highest))
    distinct: Tensor = ids.unique()
    return distinct


def distinct_ids(ids: Tensor, highest: int) -> Tensor:
    """The distinct ones of `ids` `[n]` in ascending order.

    Args:
        ids: int64, from 0 to `highest`.
        highest: What no id exceeds; it decides how many digits are sorted by.
    """
    check_ids(ids=ids)
    if not usable(ids=[ids]):
        return definition(ids, highest)
    found, known = _sorted_distinct(array(ids), highest)
    if not known:
        raise ValueError(OUT_OF_RANGE.format(highest))
    return torch.from_numpy(found)


@compiled
def _sorted_distinct(ids: Array, highest: int) -> Any:
    """The distinct ids, and whether all were in range: digits beyond `highest` are not sorted."""
    source, target, known = ids.copy(), np.empty_like(ids), True
    for n in range(ids.shape[0]):
        known &= 0 <= ids[n] <= highest
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
    return target[:count], known
