"""Which columns a row's user is known to like: a mask `[B, N]` from lists of ids."""

from __future__ import annotations

import torch
from torch import Tensor

from crossbatch.kernels.compiler import Array, array, check_device, check_ids, compiled, np, usable

OUT_OF_RANGE = "offsets must rise from 0 or more to at most the number of known ids"
ROOM = 8  # places of the hash table for each column, at least: most ids then meet an empty one


def definition(known_ids: Tensor, offsets: Tensor, column_ids: Tensor) -> Tensor:
    """As `known_columns`, by sorting: no tensor of ids × columns is made."""
    sizes = offsets.diff()
    if int(offsets[0]) < 0 or bool((sizes < 0).any()) or int(offsets[-1]) > known_ids.shape[0]:
        raise ValueError(OUT_OF_RANGE)
    known_ids = known_ids[int(offsets[0]) : int(offsets[-1])].contiguous()
    sorted_ids, order = column_ids.contiguous().sort()
    first = torch.searchsorted(sorted_ids, known_ids)  # [n]
    copies = torch.searchsorted(sorted_ids, known_ids, right=True) - first
    copies = copies.masked_fill(known_ids < 0, 0)
    B = offsets.shape[0] - 1
    row = torch.arange(B, device=known_ids.device).repeat_interleave(sizes)
    rows = row.repeat_interleave(copies)
    # Position of each match: the start of its run plus its rank within the run.
    run_start = first.repeat_interleave(copies)
    rank = torch.arange(rows.shape[0], device=rows.device)
    rank = rank - (copies.cumsum(0) - copies).repeat_interleave(copies)
    mask = torch.zeros(B, column_ids.shape[0], dtype=torch.bool, device=known_ids.device)
    mask[rows, order[run_start + rank]] = True
    return mask


def known_columns(known_ids: Tensor, offsets: Tensor, column_ids: Tensor) -> Tensor:
    """`[B, N]` bool: whether a column's id is among the row's ids.

    Args:
        known_ids: `[n]` int64 ids of all rows, end to end; negative ones are padding.
        offsets: `[B + 1]` int64; those of row b are `known_ids[offsets[b]:offsets[b + 1]]`.
        column_ids: `[N]` int64.
    """
    check_ids(known_ids=known_ids, offsets=offsets, column_ids=column_ids)
    check_device(known_ids, offsets, column_ids)
    if len(offsets) == 0:
        raise ValueError("offsets must have one more entry than there are rows, got none")
    if not usable(ids=[known_ids, offsets, column_ids]):
        return definition(known_ids, offsets, column_ids)
    mask = torch.zeros(offsets.shape[0] - 1, column_ids.shape[0], dtype=torch.bool)
    if not _mark(array(known_ids), array(offsets), array(column_ids), mask.numpy()):
        raise ValueError(OUT_OF_RANGE)
    return mask


@compiled
def _mark(ids: Array, offsets: Array, column_ids: Array, mask: Array) -> bool:
    """Set `mask` `[B, N]` where a column is among the row's ids; False for offsets out of range."""
    N = column_ids.shape[0]
    size = 1
    while size < ROOM * N:
        size *= 2
    head = np.empty(size, dtype=np.int32)
    for bucket in range(size):
        head[bucket] = -1
    following = np.empty(N, dtype=np.int32)
    for c in range(N):  # columns are chained by the last bits of their ids
        bucket = column_ids[c] & (size - 1)
        following[c] = head[bucket]
        head[bucket] = c
    for r in range(mask.shape[0]):
        if not 0 <= offsets[r] <= offsets[r + 1] <= ids.shape[0]:
            return False
        for n in range(offsets[r], offsets[r + 1]):
            if ids[n] < 0:
                continue
            c = head[ids[n] & (size - 1)]
            while c >= 0:
                if column_ids[c] == ids[n]:
                    mask[r, c] = True
                c = following[c]
    return True
