"""`FusedLayers`: linear layers and ReLUs with the backward pass written out.

    y_i = x_i W_iᵀ + b_i,  x_{i+1} = max(y_i, 0)

Autograd would make the same matrix products among many small operations, which cost a batch of 128
about as much again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

through_relu = torch.ops.aten.threshold_backward.default  # (gradient, output, 0)


class FusedLayers(torch.autograd.Function):
    """What `nn.Sequential` of the layers computes, and its gradients."""

    @staticmethod
    def run(x: Tensor, parameters: Sequence[Tensor], *, last_relu: bool) -> Tensor:
        """Vectors `[*, out]` of `x` `[*, in]`.

        Args:
            x: Input.
            parameters: Weight `[n_{i+1}, n_i]` and bias `[n_{i+1}]` of each layer in turn.
            last_relu: Whether the last layer has a ReLU, as all others have.
        """
        rows = x if x.dim() == 2 else x.flatten(0, -2)
        y: Tensor = FusedLayers.apply(last_relu, rows, *parameters)  # type: ignore[no-untyped-call]
        return y if x.dim() == 2 else y.unflatten(0, x.shape[:-1])

    @staticmethod
    def forward(ctx: Any, last_relu: bool, x: Tensor, *parameters: Tensor) -> Tensor:
        """Layer by layer; inputs of all layers are kept."""
        weights, biases = parameters[::2], parameters[1::2]
        kept = [x]
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True), start=1):
            x = functional.linear(x, weight, bias)
            if last_relu or number < len(weights):
                x.relu_()
            kept.append(x)
        ctx.last_relu = last_relu
        ctx.save_for_backward(*weights, *(kept if last_relu else kept[:-1]))
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Layer by layer, the last one first."""
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("the layers of a tower have no second derivative")
        num_layers = (len(ctx.needs_input_grad) - 2) // 2
        saved = ctx.saved_tensors
        weights, inputs = saved[:num_layers], saved[num_layers:]
        if ctx.last_relu:
            grad = through_relu(grad, inputs[-1], 0)
        found: list[Tensor | None] = []
        for number in reversed(range(num_layers)):
            found[:0] = [grad.t() @ inputs[number], grad.sum(dim=0)]
            if number:
                grad = through_relu(grad @ weights[number], inputs[number], 0)
        grad_x = grad @ weights[0] if ctx.needs_input_grad[1] else None
        return None, grad_x, *found
