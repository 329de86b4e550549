"""`DenseAdam`: AdamW without the bookkeeping around it.

The optimiser class of torch spends more time on hooks, groups, defaults and a counter for each
parameter than the kernel on the few thousand weights of small towers. This calls a kernel: ours
where numba is installed and the weights are float32 on a CPU, torch's own elsewhere.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from crossbatch import kernels
from crossbatch.models.pass_parts import Arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
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
        self._weights: list[Tensor] = list(self.parameters)
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        device = self.parameters[0].device if self.parameters else None
        self._counts = torch.zeros(len(self.parameters), device=device)
        self.steps = list(self._counts.unbind())  # views: one addition counts for all
        self._gradients: list[Tensor] = []  # of the last step, and as arrays
        self._gradient_arrays: tuple[np.ndarray, ...] = ()
        self._compiled = kernels.available() and all(
            p.device.type == "cpu" and p.dtype == torch.float32 and p.is_contiguous()
            for p in self.parameters
        )
        if self._compiled:
            self._weight_arrays = Arrays(self.parameters, flat=True)
            self._state_arrays = (
                Arrays(self.first, flat=True)(),
                Arrays(self.second, flat=True)(),
                self._counts.numpy(),
            )

    def step(self, lr: float) -> None:
        """Update whatever has a gradient, and clear the gradients."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self._compiled and gradients and len(gradients) == len(self.parameters):
            self._step_compiled(gradients, lr)
        else:
            self._step(lr)
        self.forget()

    def _step_compiled(self, gradients: Sequence[Tensor], lr: float) -> None:
        from crossbatch.training import dense_kernel

        # Ways back without a graph write to the same tensors in every step.
        if not all(map(operator.is_, gradients, self._gradients)) or not self._gradients:
            self._gradients = list(gradients)
            self._gradient_arrays = tuple([g.detach().reshape(-1).numpy() for g in gradients])
        dense_kernel.adam(
            self._weight_arrays(), self._gradient_arrays, *self._state_arrays,
            lr, self.betas, self.eps, self.weight_decay,
        )  # fmt: skip

    def _step(self, lr: float) -> None:
        found = [(i, p.grad) for i, p in enumerate(self.parameters) if p.grad is not None]
        if not found:
            return
        moved, gradients = [i for i, _ in found], [gradient for _, gradient in found]
        parts: tuple[list[Tensor], ...] = (self._weights, self.first, self.second, self.steps)
        if len(moved) < len(self.parameters):
            parts = tuple([part[i] for i in moved] for part in parts)
        weights, first, second, steps = parts
        with torch.no_grad():
            if len(moved) == len(self.parameters):
                self._counts += 1
            else:
                self._counts[moved] += 1
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

    def forget(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

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
