"""`DenseAdam`: AdamW by torch's fused kernel, without the bookkeeping of `torch.optim` around it.

The optimiser class spends more time on hooks, groups, defaults and a counter for each parameter
than the kernel on the few thousand weights of small towers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn


class DenseAdam:
    """AdamW over parameters; those without a gradient are left alone, as in torch.

    Args:
        parameters: What to update.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        device = self.parameters[0].device if self.parameters else None
        self._counts = torch.zeros(len(self.parameters), device=device)
        self.steps = list(self._counts.unbind())  # views: one addition counts for all

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update whatever has a gradient, and clear the gradients."""
        found = [(i, p.grad) for i, p in enumerate(self.parameters)]
        moved = [i for i, gradient in found if gradient is not None]
        if not moved:
            return
        gradients = [gradient for _, gradient in found if gradient is not None]
        lists: tuple[list[Any], ...] = (self.parameters, self.first, self.second, self.steps)
        if len(moved) == len(self.parameters):
            self._counts += 1
        else:
            self._counts[moved] += 1
            lists = tuple([each[i] for i in moved] for each in lists)
        weights, first, second, steps = lists
        torch._fused_adamw_(
            weights,
            gradients,
            first,
            second,
            [],
            steps,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )
        for weight in weights:
            weight.grad = None

    def forget(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def limit_steps(self, most: int) -> None:
        """Count no parameter's steps higher than `most`."""
        self._counts.clamp_(max=most)

    def state(self) -> dict[str, Tensor]:
        """All state, not copied."""
        return {
            f"{name}.{i}": value
            for name in ("first", "second", "steps")
            for i, value in enumerate(getattr(self, name))
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for key, own in self.state().items():
            own.copy_(state[key])
