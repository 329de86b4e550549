"""`RowAdagrad`: row-wise Adagrad over an embedding table, one number of state for a row.

With g the gradient of a row that was read, s its sum of mean squares:

    s ← s + mean(g²)        w ← w − lr · g / (√s + ε)

A row that gets no gradient does not move, so there is nothing to make up for. This is the optimiser
that TorchRec fuses into its tables on a CPU: a run on one machine can be resumed with its table
sharded over several, and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from crossbatch.models.pass_parts import Arrays
from crossbatch.training.row_sums import CompiledSums, RowReads, add_up
from crossbatch.training.schedules import RateOfStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from crossbatch.models import EmbeddingTable
    from crossbatch.models.embedding import Read

EPS = 1e-8


class RowAdagrad(RowReads):
    """Row-wise Adagrad for one table.

    Args:
        table: The table to look after; it is told so (`table.keeper`).
        rate: Learning rates `[*]` of steps `[*]` (floating point, counted from 1).
        compiled: As in `RowAdam`.
    """

    def __init__(
        self,
        table: EmbeddingTable,
        rate: Callable[[Tensor], Tensor],
        *,
        compiled: bool | None = None,
    ) -> None:
        self.table, self.rate_of = table, RateOfStep(rate)
        self.steps = 0
        self.reads: list[Read] = []  # since the last step
        weight = table.weight.detach()
        self.squares = weight.new_zeros(weight.shape[0])  # s: [R]
        self._sums = CompiledSums.of(table, compiled=compiled)
        self._arrays = Arrays([table.weight, self.squares])
        table.keeper = self

    def before_read(self, ids: Tensor) -> None:
        """Rows are always up to date."""

    def replace_reads(self, reads: list[Read]) -> None:
        """Take these for what was read: those of all processes that have a copy of the table."""
        self.reads = reads

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients of all reads since the last step to the rows that were read."""
        self.steps += 1
        found = self.take_gradients()
        if not found:
            return
        lr = self.rate_of(self.steps)
        if sums := self._sums:
            count = sums(found)
            sums.kernels.adagrad(count, sums.rows, sums.sources, *self._arrays(), lr, EPS)
            return
        rows, gradient = add_up(found, self.table.padding_row)
        squares = self.squares[rows] + gradient.square().mean(dim=1)
        self.squares[rows] = squares
        self.table.weight.data[rows] -= lr * gradient / (squares.sqrt() + EPS).unsqueeze(1)

    def flush(self) -> None:
        """Rows are always up to date."""

    def state(self) -> dict[str, Tensor]:
        """All state, not copied."""
        return {"steps": torch.tensor(self.steps), "squares": self.squares}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.steps = int(state["steps"])
        self.squares.copy_(state["squares"])
        self.forget()
