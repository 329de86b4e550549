"""The ranks' reads of embedding tables, exchanged: ids and gradients, never tables.

A `RowRead` is small where a table is big: the ids of a batch and one gradient per sum of rows. So
the ranks exchange reads, and each applies all of them to its own copy of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from crossbatch.kernels.row_gradients import RowRead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from crossbatch.training.distributed.ranks import Ranks
    from crossbatch.training.optimizers.row_optimizer import RowOptimizer


def share_reads(ranks: Ranks, tables: Sequence[RowOptimizer]) -> None:
    """Give every table the reads of all ranks, in the ranks' order, in place of its own."""
    own = [[read for read in table.reads if read.leaf.grad is not None] for table in tables]
    flat = [read for reads in own for read in reads]
    if not flat:
        return
    joined = iter(_joined(ranks, flat))
    for table, reads in zip(tables, own, strict=True):
        table.replace_reads([next(joined) for _ in reads])


def _joined(ranks: Ranks, reads: list[RowRead]) -> list[RowRead]:
    """Each read followed by the other ranks' reads of the same call."""
    numbers = [part for read in reads for part in (read.ids, read.sizes) if part is not None]
    gradients = [cast("Tensor", read.gradient) for read in reads]
    numels = torch.tensor(
        [tensor.numel() for tensor in (*numbers, *gradients)], device=gradients[0].device
    )
    all_sizes = [each.tolist() for each in ranks.collect(numels)]
    split = len(numbers)
    all_numbers = _exchanged(ranks, numbers, [each[:split] for each in all_sizes])
    all_gradients = _exchanged(ranks, gradients, [each[split:] for each in all_sizes])
    joined, place = [], 0
    for i, read in enumerate(reads):
        ids = torch.cat([mine[place] for mine in all_numbers])
        rows = [mine[i].view(-1, gradients[i].shape[1]) for mine in all_gradients]
        sizes = None
        if read.sizes is not None:
            sizes = torch.cat([mine[place + 1] for mine in all_numbers])
        place += 1 if read.sizes is None else 2
        gradient = torch.cat(rows)
        leaf = torch.empty_like(gradient).requires_grad_()  # for its gradient alone
        leaf.grad = gradient
        joined.append(RowRead(ids, leaf, sizes))
    return joined


def _exchanged(ranks: Ranks, parts: list[Tensor], sizes: list[list[int]]) -> list[list[Tensor]]:
    """The flat `parts` of every rank, whose lengths are `sizes`, in one message."""
    longest = max(sum(each) for each in sizes)
    buffer = parts[0].new_zeros(longest)
    torch.cat([part.reshape(-1) for part in parts], out=buffer[: sum(sizes[ranks.rank])])
    received = ranks.collect(buffer)
    return [
        list(each[: sum(lengths)].split(lengths))
        for each, lengths in zip(received, sizes, strict=True)
    ]
