"""`RowAdam`: Adam over an embedding table at the cost of the rows that a batch reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from crossbatch.kernels.memory import zeros_on_large_pages
from crossbatch.kernels.row_updates import AdamRates, RowUpdates
from crossbatch.kernels.skipped_steps import SkippedSteps
from crossbatch.training.optimizers.row_optimizer import RowOptimizer, checked_steps
from crossbatch.training.optimizers.schedules import RateOfStep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from crossbatch.kernels.row_gradients import RowRead
    from crossbatch.models import EmbeddingTable


class RowAdam(RowOptimizer):
    """Adam for one table, with the moments and the last step of each row.

    Args:
        table: The table whose rows to update; its `row_optimizer` is set to this.
        rate: Learning rates `[*]` of steps `[*]` (floating point, counted from 1).
        semantics: `"dense"` for the trajectory of `torch.optim.Adam` (see `SkippedSteps`); `"lazy"`
            moves only rows that got a gradient (as `torch.optim.SparseAdam`), so that rare items
            keep still.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay of the rows that got a gradient; others are left alone.
    """

    def __init__(
        self,
        table: EmbeddingTable,
        rate: Callable[[Tensor], Tensor],
        *,
        semantics: str = "dense",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if semantics not in ("dense", "lazy"):
            raise ValueError(f"semantics must be 'dense' or 'lazy', got {semantics!r}")
        super().__init__(table)
        self.dense = semantics == "dense"
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        weight = table.weight.detach()
        # m, v: [R, d]
        self.first, self.second = zeros_on_large_pages(weight), zeros_on_large_pages(weight)
        # [R] last step whose update a row contains; 0 for never.
        self.touched = torch.zeros(weight.shape[0], dtype=torch.int32, device=weight.device)
        self._rate_of, self._skipped = RateOfStep(rate), SkippedSteps(rate, betas, eps)
        self._updates = RowUpdates(table.padding_row)

    def before_read(self, ids: Tensor) -> None:
        """Bring the rows of `ids` `[n]` to the current step."""
        if self.dense:
            self._catch_up(ids)

    def replace_reads(self, reads: list[RowRead]) -> None:
        """Use these reads for the next step: those of all processes with a copy of the table."""
        for read in reads:
            self.before_read(read.ids)
        self.reads = reads

    def apply(self, reads: list[RowRead]) -> None:
        """Move the rows that were read by the gradients of the reads."""
        rates = self._rates(self.steps)
        self._updates.adam(
            reads, self.table.weight.data, self.first, self.second, self.touched, self.steps, rates
        )

    def flush(self, *, chunk: int = 16_384) -> None:
        """Bring the whole table to the current step; before evaluation or export."""
        if self.dense:
            every = torch.arange(self.touched.shape[0], device=self.touched.device)
            for ids in every.split(chunk):
                self._catch_up(ids)

    def moments(self) -> dict[str, Tensor]:
        """Both moments of all rows `[R, d]`, not copied."""
        return {"first": self.first, "second": self.second}

    def load_moments(self, moments: Mapping[str, Tensor], steps: int) -> None:
        """Take over moments of rows that are up to date after so many steps."""
        super().load_moments(moments, steps)
        self.touched.copy_(self.second.any(dim=1) * steps)

    def state(self) -> dict[str, Tensor]:
        """All state, not copied."""
        return {"steps": torch.tensor(self.steps), **self.moments(), "touched": self.touched}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned.

        Raises:
            ValueError: If the state cannot be that of this optimiser.
        """
        steps, touched = checked_steps(state), state["touched"]
        if touched.numel() and not 0 <= int(touched.min()) <= int(touched.max()) <= steps:
            raise ValueError(
                f"touched must be between 0 and the {steps} steps so far; the state was damaged"
            )
        self.steps = steps
        for name in ("first", "second", "touched"):
            getattr(self, name).copy_(state[name])
        self.forget()

    def _catch_up(self, ids: Tensor) -> None:
        weight = self.table.weight.data
        self._skipped.catch_up(ids, weight, self.first, self.second, self.touched, self.steps)

    def _rates(self, step: int) -> AdamRates:
        beta1, beta2 = self.betas
        lr = self._rate_of(step)
        return AdamRates(
            lr / (1 - beta1**step),
            1 - beta1,
            beta2,
            1 - beta2,
            1 / math.sqrt(1 - beta2**step),
            self.eps,
            1 - lr * self.weight_decay,
        )
