"""`RowOptimizer`: what optimisers over the rows of an embedding table have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from crossbatch.kernels.row_gradients import RowRead
    from crossbatch.models import EmbeddingTable


class RowOptimizer(ABC):
    """Collects the reads of a table, and moves the rows that were read.

    The gradient of a read comes with the backward pass, in the read's leaf.

    Args:
        table: The table whose rows to update; its `row_optimizer` is set to this.

    Attributes:
        steps: Steps so far; those of an earlier run are among them if its moments were loaded.
    """

    def __init__(self, table: EmbeddingTable) -> None:
        self.table = table
        self.steps = 0
        self.reads: list[RowRead] = []  # since the last step
        table.row_optimizer = self

    def before_read(self, ids: Tensor) -> None:
        """Bring the rows `ids` `[n]` up to date, before they are read."""
        return

    def after_read(self, read: RowRead) -> None:
        """Remember a read until its gradient is used by `step`."""
        self.reads.append(read)

    def replace_reads(self, reads: list[RowRead]) -> None:
        """Use these reads for the next step: those of all processes with a copy of the table."""
        self.reads = reads

    def step(self) -> None:
        """Apply the gradients of all reads since the last step."""
        self.steps += 1
        reads, self.reads = self.reads, []
        reads = [read for read in reads if read.leaf.grad is not None]
        if reads:
            self.apply(reads)

    @abstractmethod
    def apply(self, reads: list[RowRead]) -> None:
        """Move the rows that were read by the gradients of the reads."""

    def forget(self) -> None:
        """Drop the gradients."""
        self.reads = []

    def flush(self) -> None:
        """Bring the whole table to the current step; before evaluation or export."""
        return

    @abstractmethod
    def moments(self) -> dict[str, Tensor]:
        """What is kept of each row's gradients, `[R, …]` tensors, not copied."""

    def load_moments(self, moments: Mapping[str, Tensor], steps: int) -> None:
        """Take over moments `[R, …]` after so many steps; rows of zeros never had a gradient.

        Raises:
            ValueError: If they are not those of this optimiser and table.
        """
        own = self.moments()
        shapes = {key: tuple(value.shape) for key, value in moments.items()}
        if shapes != {key: tuple(value.shape) for key, value in own.items()}:
            raise ValueError(f"moments of {type(self).__name__} are {', '.join(own)}, got {shapes}")
        for key, value in own.items():
            value.copy_(moments[key])
        self.steps = steps

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All state, not copied."""

    @abstractmethod
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""


def checked_steps(state: Mapping[str, Tensor]) -> int:
    """The number of steps in a state.

    Raises:
        ValueError: If it is not one number of at least 0.
    """
    steps = state["steps"]
    if steps.numel() != 1 or int(steps) < 0:
        raise ValueError(
            f"steps must be one number of at least 0, got {steps}: the state is damaged"
        )
    return int(steps)
