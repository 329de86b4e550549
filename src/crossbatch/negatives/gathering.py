"""Rows of all processes of a group, with gradient: negatives of the whole batch for every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Gathered:
    """How the rows of a batch are divided over the processes of a group.

    Args:
        group: A process group, such as `torch.distributed.group.WORLD`.
        num_rows: Rows of this process; others may have more or fewer.
        device: Of the rows.

    Attributes:
        size: Number of processes.
        own: Which of all rows are this process's.
        total: Rows of all processes.
    """

    def __init__(self, group: Any, num_rows: int, device: torch.device) -> None:
        self.group, self.size = group, dist.get_world_size(group)
        mine = torch.tensor([num_rows], device=device)
        counts = [torch.zeros_like(mine) for _ in range(self.size)]
        dist.all_gather(counts, mine, group=group)
        self.counts = [int(count) for count in counts]
        start = sum(self.counts[: dist.get_rank(group)])
        self.own, self.total = slice(start, start + num_rows), sum(self.counts)

    def rows(self, rows: Tensor) -> Tensor:
        """All rows `[total, …]` of which `rows` `[n, …]` are this process's.

        A row's gradient is the sum of what all processes have for it. 16-bit numbers become 32-bit
        ones, because sums need more digits.
        """
        if rows.is_floating_point():
            rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        found: Tensor = _Gather.apply(rows, self)  # type: ignore[no-untyped-call]
        return found

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a number over all processes, without gradient."""
        total = value.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, gathered: Gathered) -> Tensor:
        ctx.gathered = gathered
        padded = rows.new_zeros(max(gathered.counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in gathered.counts]
        dist.all_gather(received, padded, group=gathered.group)
        pairs = zip(received, gathered.counts, strict=True)
        return torch.cat([part[:count] for part, count in pairs])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.gathered.group)
        return total[ctx.gathered.own], None
