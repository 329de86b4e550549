"""`Adam` for a whole model: row-wise on embedding tables, torch's own on everything else."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crossbatch.kernels.row_gradients import sum_gradients
from crossbatch.models import EmbeddingTable
from crossbatch.models.embedding import RowTable
from crossbatch.training.optimizers.dense_adam import DenseAdam
from crossbatch.training.optimizers.row_adagrad import RowAdagrad
from crossbatch.training.optimizers.row_adam import RowAdam
from crossbatch.training.optimizers.row_optimizer import RowOptimizer, checked_steps
from crossbatch.training.optimizers.schedules import SCHEDULES, RateOfStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


# 1 − β2^t is 1 in float64 from here on: more steps before a run change nothing, but cost memory.
LEVEL_STEPS = 40_000
NO_RATES: Mapping[str, float] = MappingProxyType({})


class _Parts:
    """Which key of `lr_of` a parameter belongs to: the longest that begins its name, or ""."""

    def __init__(self, model: nn.Module, lr_of: Mapping[str, float]) -> None:
        self._keys = sorted(lr_of, key=len, reverse=True)
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        for key in self._keys:
            if not any(self._begins(name, key) for name in trained):
                modules = [name for name, _ in model.named_modules() if name.count(".") in (0, 1)]
                known = ", ".join(name for name in modules if name)
                raise ValueError(
                    f"lr_of names {key!r}, but no weight that is trained begins so; parts are: "
                    f"{known}"
                )

    @staticmethod
    def _begins(name: str, key: str) -> bool:
        return f"{name}.".startswith(f"{key}.")

    def of(self, name: str) -> str:
        return next((key for key in self._keys if self._begins(name, key)), "")


def _rates(
    schedule: str, total_steps: int, warmup_steps: int, steps_before: int
) -> Callable[[float], Callable[[Tensor], Tensor]]:
    """From a base rate to the learning rates `[*]` of steps `[*]`, `steps_before` not counted."""
    curve = SCHEDULES[schedule]

    def of_base(base: float) -> Callable[[Tensor], Tensor]:
        def rates(step: Tensor) -> Tensor:
            step = (step - steps_before).clamp(min=1.0)
            plain = curve(base, step, total_steps)
            return plain * (step / warmup_steps).clamp(max=1.0) if warmup_steps else plain

        return rates

    return of_base


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
        lr_of: Base learning rates of single parts by the beginning of their parameters' names,
            such as `{"item_tower.encoder": 2e-5}`; of several that fit, the longest counts.
        warmup_steps: Optimiser steps over which all rates rise linearly to those of the schedule.
        clip_norm: Largest norm of the gradient of all weights together; 0 for any.
        steps_before: Optimiser steps of an earlier run whose moments `load_moments` will bring.
            They count for the moments, but not for the schedule.

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
        lr_of: Mapping[str, float] = NO_RATES,
        warmup_steps: int = 0,
        clip_norm: float = 0.0,
        steps_before: int = 0,
    ) -> None:
        if tables not in ("adam", "adagrad"):
            raise ValueError(f"tables must be 'adam' or 'adagrad', got {tables!r}")
        parts = _Parts(model, lr_of)
        rate = _rates(schedule, total_steps, warmup_steps, steps_before)
        self.rate_of, self.table_rate_of = RateOfStep(rate(lr)), RateOfStep(rate(table_lr))
        self.steps = self.steps_before = steps_before
        self.clip_norm = clip_norm

        def optimizer_of(name: str, table: EmbeddingTable) -> RowOptimizer:
            own = lr_of.get(parts.of(f"{name}.weight"))
            if tables == "adagrad":
                return RowAdagrad(table, rate(own or table_lr))
            return RowAdam(table, rate(own or lr), semantics=semantics, weight_decay=weight_decay)

        found = {name: part for name, part in model.named_modules() if isinstance(part, RowTable)}
        self.sharded: dict[str, Any] = {
            name: table for name, table in found.items() if not isinstance(table, EmbeddingTable)
        }
        self.tables = {
            name: optimizer_of(name, table)
            for name, table in found.items()
            if isinstance(table, EmbeddingTable) and table.sparse
        }
        for row_optimizer in self.tables.values():
            row_optimizer.steps = steps_before
        by_rows = {id(optimizer.table.weight) for optimizer in self.tables.values()}
        grouped: dict[str, list[nn.Parameter]] = {part: [] for part in ("", *lr_of)}
        self._names: dict[int, str] = {}  # of parameters, by their identity
        for name, parameter in model.named_parameters():
            if id(parameter) not in by_rows:
                grouped[parts.of(name)].append(parameter)
                self._names[id(parameter)] = name
        extra = list(extra)
        self._names |= {id(parameter): f"extra.{i}" for i, parameter in enumerate(extra)}
        # The first two are of all runs; those of `lr_of` follow.
        self.dense = [DenseAdam(grouped[""], weight_decay=weight_decay), DenseAdam(extra)]
        self.dense += [DenseAdam(grouped[part], weight_decay=weight_decay) for part in lr_of]
        base = self.rate_of
        self._rates = [base, base, *(RateOfStep(rate(own)) for own in lr_of.values())]

    def step(self) -> float:
        """Update everything that has a gradient, clear the gradients, return the rate used."""
        self.steps += 1
        if self.clip_norm:
            self._clip()
        for group, rate_of in zip(self.dense, self._rates, strict=True):
            if group.parameters:
                group.step(rate_of(self.steps))
        for table in self.tables.values():
            table.step()
        return self.rate_of(self.steps)

    @torch.no_grad()
    def _clip(self) -> None:
        """Scale all gradients down if their norm over all weights exceeds `clip_norm`."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        leaves: dict[int, Tensor] = {}  # tables may have been read into one
        squares = [gradient.float().square().sum() for gradient in gradients]
        for table in self.tables.values():
            reads = [read for read in table.reads if read.leaf.grad is not None]
            if reads:
                _, rows = sum_gradients(reads, table.table.padding_row)
                squares.append(rows.float().square().sum())
            leaves |= {id(read.leaf): read.leaf for read in reads}
        if not squares:
            return
        norm = float(torch.stack([square.cpu() for square in squares]).sum().sqrt())
        if norm > self.clip_norm:
            gradients += [leaf.grad for leaf in leaves.values() if leaf.grad is not None]
            for gradient in gradients:
                gradient.mul_(self.clip_norm / norm)

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

    def moments(self) -> dict[str, Tensor]:
        """Moments by the names of their parameters, and the number of steps; not copied.

        Unlike `state` they fit a later run, whose tables have other rows. Call `flush` before.
        """
        found = {"steps": torch.tensor(self.steps)}
        for name, table in self.tables.items():
            found |= {f"{name}.weight.{key}": value for key, value in table.moments().items()}
        return found | self._dense_moments()

    def load_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Take over moments after `steps_before` steps; parameters without any start from zero.

        Raises:
            ValueError: If those of a table are of another optimiser, or shapes differ.
        """
        for name, table in self.tables.items():
            start = f"{name}.weight."
            own = {k[len(start) :]: v for k, v in moments.items() if k.startswith(start)}
            table.load_moments(own, self.steps_before)
        for name, value in self._dense_moments().items():
            if name in moments:
                if moments[name].shape != value.shape:
                    raise ValueError(f"{name} is {list(moments[name].shape)}")
                value.copy_(moments[name])
        for group in self.dense:
            group.limit_steps(self.steps_before)

    def _dense_moments(self) -> dict[str, Tensor]:
        """Moments and steps of the parameters that are not updated by rows."""
        return {
            f"{self._names[id(parameter)]}.{key}": getattr(group, key)[i]
            for group in self.dense
            for i, parameter in enumerate(group.parameters)
            for key in ("first", "second", "steps")
        }

    def _parts(self) -> dict[str, RowOptimizer | DenseAdam]:
        parts: dict[str, RowOptimizer | DenseAdam] = {
            f"table.{name}": table for name, table in self.tables.items()
        }
        return parts | {f"dense.{index}": group for index, group in enumerate(self.dense)}
