"""`RowAdagrad`: row-wise Adagrad over an embedding table, one number of state for a row.

With g the gradient of a row that was read, s its sum of mean squares:

    s ← s + mean(g²)        w ← w − lr · g / (√s + ε)

A row that gets no gradient does not move. This is the optimiser that TorchRec fuses into its tables
on a CPU: a run on one machine can be continued with its table spread over several, and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from crossbatch.kernels.row_updates import RowUpdates
from crossbatch.training.optimizers.row_optimizer import RowOptimizer, checked_steps
from crossbatch.training.optimizers.schedules import RateOfStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from crossbatch.kernels.row_gradients import RowRead
    from crossbatch.models import EmbeddingTable

EPS = 1e-8


class RowAdagrad(RowOptimizer):
    """Row-wise Adagrad for one table.

    Args:
        table: The table whose rows to update; its `row_optimizer` is set to this.
        rate: Learning rates `[*]` of steps `[*]` (floating point, counted from 1).
    """

    def __init__(self, table: EmbeddingTable, rate: Callable[[Tensor], Tensor]) -> None:
        super().__init__(table)
        self.rate_of = RateOfStep(rate)
        weight = table.weight.detach()
        self.squares = weight.new_zeros(weight.shape[0])  # s: [R]
        self._updates = RowUpdates(table.padding_row)

    def apply(self, reads: list[RowRead]) -> None:
        """Move the rows that were read by the gradients of the reads."""
        lr = self.rate_of(self.steps)
        self._updates.adagrad(reads, self.table.weight.data, self.squares, lr, EPS)

    def moments(self) -> dict[str, Tensor]:
        """Sums of mean squares of the gradients `[R]`, not copied."""
        return {"squares": self.squares}

    def state(self) -> dict[str, Tensor]:
        """All state, not copied."""
        return {"steps": torch.tensor(self.steps), **self.moments()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.steps = checked_steps(state)
        self.squares.copy_(state["squares"])
        self.forget()
