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
SOME = 1024  # ids to have room for at first


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
    """`add_up` by numba, into memory that is kept.

    Args:
        table: Whose rows are read; float32 on a CPU.

    Attributes:
        rows: `[>= n]` distinct rows of the last reads.
        sources: `[>= n]` addresses of their gradients `[d]`, valid until the next call.
        kernels: What can be done with them.
    """

    def __init__(self, table: EmbeddingTable) -> None:
        from crossbatch.training import row_kernels

        self.kernels = row_kernels
        self.padding = -1 if table.padding_row is None else table.padding_row
        self._gradients: list[np.ndarray] = []  # to which `sources` point
        self._make_room(SOME, table.dim)

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
        """Number of distinct rows of reads with gradients, after adding those up."""
        num_ids = sum([read.ids.shape[0] for read, _ in found])
        if num_ids > len(self.rows):
            self._make_room(2 * num_ids, self._totals.shape[1])
        self._places.fill(-1)
        self._gradients = [gradient.contiguous().numpy() for _, gradient in found]
        memory, count = (self._places, self.rows, self.sources, self._totals), 0
        for (read, _), values in zip(found, self._gradients, strict=True):
            ids, first = read.ids.numpy(), read.columns.start
            bags, per_bag = (
                (NO_BAGS, read.bags) if isinstance(read.bags, int) else (read.bags.numpy(), 1)
            )
            count = self.kernels.add_up(
                ids, bags, per_bag, values, first or 0, self.padding, *memory, count
            )
        return count

    def _make_room(self, num_ids: int, dim: int) -> None:
        self.rows, self.sources = np.empty((2, num_ids), dtype=np.int64)
        self._totals = np.empty((num_ids, dim), dtype=np.float32)
        self._places = np.empty(2 ** (2 * num_ids - 1).bit_length(), dtype=np.int32)
