"""`Adam` for a whole model: row-wise on embedding tables, torch's own on everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crossbatch.models import EmbeddingTable
from crossbatch.models.embedding import RowTable
from crossbatch.training.optimizers.dense_adam import DenseAdam
from crossbatch.training.optimizers.row_adagrad import RowAdagrad
from crossbatch.training.optimizers.row_adam import RowAdam
from crossbatch.training.optimizers.row_optimizer import RowOptimizer, checked_steps
from crossbatch.training.optimizers.schedules import SCHEDULES, RateOfStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Adam:
    """Adam with the paper's settings at the cost of what a batch touches.

    Args:
        model: Its tables (`EmbeddingTable`) are updated row by row, other parameters by torch.
        lr: Base learning rate.
        schedule: A key of `SCHEDULES`.
        total_steps: Length of the schedule, in optimiser steps.
        semantics: `"dense"` or `"lazy"`; see `RowAdam`.
        weight_decay: Decoupled decay of dense parameters and touched rows.
        extra: Further parameters, such as a learned temperature, which never decay.
        tables: `"adam"`; or `"adagrad"`, row-wise, for the tables alone.
        table_lr: Base learning rate of Adagrad.

    Attributes:
        tables: The optimiser of the rows of each `EmbeddingTable`, by name.
        sharded: Tables of other kinds, which update their own rows in the backward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float = 0.001,
        schedule: str = "constant",
        total_steps: int = 1_000_000,
        semantics: str = "dense",
        weight_decay: float = 0.0,
        extra: Iterable[nn.Parameter] = (),
        tables: str = "adam",
        table_lr: float = 0.001,
    ) -> None:
        curve = SCHEDULES[schedule]

        def rate(step: Tensor) -> Tensor:
            return curve(lr, step, total_steps)

        def table_rate(step: Tensor) -> Tensor:
            return curve(table_lr, step, total_steps)

        self.rate_of, self.table_rate_of = RateOfStep(rate), RateOfStep(table_rate)
        self.steps = 0
        self.sharded: dict[str, Any] = {
            name: part
            for name, part in model.named_modules()
            if isinstance(part, RowTable) and not isinstance(part, EmbeddingTable)
        }
        found = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, EmbeddingTable) and module.sparse
        }
        optimizers: dict[str, Callable[[EmbeddingTable], RowOptimizer]] = {
            "adam": lambda table: RowAdam(
                table, rate, semantics=semantics, weight_decay=weight_decay
            ),
            "adagrad": lambda table: RowAdagrad(table, table_rate),
        }
        self.tables = {name: optimizers[tables](table) for name, table in found.items()}
        by_rows = {id(table.weight) for table in found.values()}
        decayed = [p for p in model.parameters() if id(p) not in by_rows]
        self.dense = [DenseAdam(decayed, weight_decay=weight_decay), DenseAdam(extra)]

    def step(self) -> float:
        """Update everything that has a gradient, clear the gradients, return the rate used."""
        self.steps += 1
        lr = self.rate_of(self.steps)
        for group in self.dense:
            group.step(lr)
        for table in self.tables.values():
            table.step()
        return lr

    def before_backward(self) -> None:
        """Give the tables that learn in the backward pass the rate of the step to come."""
        for table in self.sharded.values():
            table.set_rate(self.table_rate_of(self.steps + 1))

    def parameters(self) -> list[nn.Parameter]:
        """What is updated by torch, not by rows."""
        return [parameter for group in self.dense for parameter in group.parameters]

    def forget(self) -> None:
        """Drop all gradients."""
        for part in self._parts().values():
            part.forget()

    def flush(self) -> None:
        """Bring rows that dense semantics left behind up to date; before anyone else reads them."""
        for table in self.tables.values():
            table.flush()

    def state(self) -> dict[str, Tensor]:
        """All state as a flat dictionary of tensors."""
        steps = torch.tensor(self.steps)
        state = {"steps": steps} | {f"table.{name}.steps": steps.clone() for name in self.sharded}
        for name, part in self._parts().items():
            state |= {f"{name}.{key}": value for key, value in part.state().items()}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.steps = checked_steps(state)
        for name, part in self._parts().items():
            part.load_state({key: state[f"{name}.{key}"] for key in part.state()})

    def _parts(self) -> dict[str, RowOptimizer | DenseAdam]:
        parts: dict[str, RowOptimizer | DenseAdam] = {
            f"table.{name}": table for name, table in self.tables.items()
        }
        return parts | {f"dense.{index}": group for index, group in enumerate(self.dense)}
