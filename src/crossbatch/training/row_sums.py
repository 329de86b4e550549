"""Sums of gradients over the rows that a batch read, as optimisers of table rows need them.

A batch reads popular rows several times, and rows that are summed have one gradient between them.
`add_up` is the definition; `CompiledSums` the same in one pass, into memory that is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from crossbatch import kernels

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.models import EmbeddingTable
    from crossbatch.models.embedding import Read

NO_BAGS = np.empty(0, dtype=np.int64)


class RowReads:
    """The reads of a table since the last step; their gradients come with the backward pass."""

    reads: list[Read]

    def after_read(self, read: Read) -> None:
        """Remember a read until its gradient is used by `step`."""
        self.reads.append(read)

    def forget(self) -> None:
        """Drop the gradients."""
        self.reads = []

    def take_gradients(self) -> list[tuple[Read, Tensor]]:
        """The reads that got a gradient, with it; nothing is remembered afterwards."""
        reads, self.reads = self.reads, []
        found = [(read, read.wide_gradient) for read in reads]
        return [(read, gradient) for read, gradient in found if gradient is not None]


def add_up(found: list[tuple[Read, Tensor]], padding_row: int | None) -> tuple[Tensor, Tensor]:
    """Distinct rows `[n]` of reads and the sum of their gradients `[n, d]`."""
    ids = torch.cat([read.ids for read, _ in found])
    gradients = torch.cat(
        [_of_each_id(read, gradient[:, read.columns]) for read, gradient in found]
    )
    if padding_row is not None:
        real = (ids != padding_row).nonzero().squeeze(1)
        ids, gradients = ids[real], gradients.index_select(0, real)
    rows, where = ids.unique(return_inverse=True)
    total = gradients.new_zeros(rows.shape[0], gradients.shape[1])
    return rows, total.index_add_(0, where, gradients)


def _of_each_id(read: Read, gradient: Tensor) -> Tensor:
    """Gradients `[n, d]` of the rows that went into sums with gradients `[m, d]`."""
    if isinstance(read.bags, int):
        return gradient if read.bags == 1 else gradient.repeat_interleave(read.bags, dim=0)
    return gradient.index_select(0, read.bags)


class CompiledSums:
    """`add_up` by numba. Whoever uses the sums sets the slots of their rows to −1 again.

    Args:
        table: Whose rows are read; float32 on a CPU.

    Attributes:
        rows: `[>= n]` distinct rows of the last reads.
        totals: `[>= n, d]` their gradients.
        slots: `[R]` int32, the place of each row in `rows`, −1 for none.
    """

    def __init__(self, table: EmbeddingTable) -> None:
        from crossbatch.training import row_kernels

        self.kernels = row_kernels
        self.rows, self.totals = NO_BAGS, np.empty((0, table.dim), dtype=np.float32)
        self.slots = np.full(table.weight.shape[0], -1, dtype=np.int32)
        self.padding = -1 if table.padding_row is None else table.padding_row

    @classmethod
    def of(cls, table: EmbeddingTable, *, compiled: bool | None = None) -> CompiledSums | None:
        """Sums for a table; None where numba is missing, or no help.

        Args:
            table: Whose rows are read.
            compiled: False for None in any case, True for an error where numba is missing.
        """
        weight = table.weight
        possible = weight.device.type == "cpu" and weight.dtype == torch.float32
        wanted = possible and kernels.HAS_NUMBA if compiled is None else compiled
        return cls(table) if wanted else None

    def __call__(self, found: list[tuple[Read, Tensor]]) -> int:
        """Number of distinct rows, after adding up their gradients."""
        self._make_room(sum([read.ids.shape[0] for read, _ in found]))
        places, count = (self.padding, self.slots, self.rows, self.totals), 0
        for read, gradient in found:
            ids, values, first = read.ids.numpy(), gradient.contiguous().numpy(), read.columns.start
            bags, per_bag = (
                (NO_BAGS, read.bags) if isinstance(read.bags, int) else (read.bags.numpy(), 1)
            )
            count, _ = self.kernels.add_up(ids, bags, per_bag, values, first or 0, *places, count)
        return count

    def _make_room(self, num_ids: int) -> None:
        if len(self.rows) < num_ids:
            self.rows = np.empty(2 * num_ids, dtype=np.int64)
            self.totals = np.empty((2 * num_ids, self.totals.shape[1]), dtype=np.float32)
