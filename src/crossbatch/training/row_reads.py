"""`RowReads`: what an optimiser of table rows remembers between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.models.embedding import Read


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
