"""Behaviour-to-interest routing: which interest each item of a history belongs to.

capsules = route(history, mask, logits, bilinear, iterations=3)     # [B, K, d]
"""

from typing import Any

import torch
from torch import Tensor, nn

from crossbatch import kernels


def routing_weights(logits: Tensor, mask: Tensor) -> Tensor:
    """Share of each position in each interest: softmax over the K interests, 0 at padding.

    Args:
        logits: `[B, K, L]`.
        mask: `[B, L]`.

    Returns:
        `[B, K, L]`, summing to 1 over K at each real position.
    """
    return logits.softmax(dim=1) * mask.unsqueeze(1)


def squash(capsules: Tensor) -> Tensor:
    """Capsules `[B, K, d]` shrunk to a length in [0, 1): v · |v|² / (1 + |v|²) / |v|."""
    square = capsules.square().sum(dim=-1, keepdim=True)
    return capsules * (square / (1 + square) / (square + 1e-9).sqrt())


def route(
    history: Tensor, mask: Tensor, logits: Tensor, bilinear: nn.Linear, iterations: int
) -> Tensor:
    """Capsules `[B, K, d]` after `iterations` rounds of agreement between them and the items.

    Only the last weighted sum carries gradient; the rounds before choose its weights. The map
    `bilinear` of items is applied to the K weighted sums instead of the L items: by linearity the
    same at a fraction of the cost.

    Args:
        history: `[B, L, w]`.
        mask: `[B, L]`.
        logits: First routing logits `[B, K, L]`.
        bilinear: The shared map.
        iterations: At least 1.
    """
    with torch.no_grad():
        for _ in range(iterations - 1):
            capsules = _capsules(history, routing_weights(logits, mask), bilinear)
            agreement = torch.bmm(capsules @ bilinear.weight, history.transpose(1, 2))  # [B, K, L]
            if bilinear.bias is not None:
                agreement = agreement + (capsules @ bilinear.bias).unsqueeze(2)
            logits = logits + agreement
        weights = routing_weights(logits, mask)
    return _capsules(history, weights, bilinear)


def _capsules(history: Tensor, weights: Tensor, bilinear: nn.Linear) -> Tensor:
    """Squashed sums `[B, K, d]` of mapped items with weights `[B, K, L]`."""
    sums = torch.bmm(weights.to(history.dtype), history) @ bilinear.weight.T
    if bilinear.bias is not None:
        sums = sums + weights.sum(dim=2, keepdim=True) * bilinear.bias
    return squash(sums)


def can_compile(weight: Tensor) -> bool:
    """Whether the compiled form can stand in for a tower with this weight."""
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    rewritten = torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
    return plain and not rewritten and kernels.available()


def routed(
    items: Tensor,
    stops: Tensor,
    logits: Tensor,
    iterations: int,
    bilinear: nn.Linear,
    layer: nn.Linear | None,
) -> Tensor:
    """Interests `[B, K, d]`: `route`, then `layer` and a ReLU, compiled, over real positions only.

    Args:
        items: `[P, w]` of one history after the other.
        stops: `[B]` where each ends.
        logits: First routing logits `[P, K]`.
        iterations: At least 1.
        bilinear: The shared map.
        layer: The layer behind the capsules, or None.
    """
    weight = bilinear.weight
    d = len(weight)
    bias = weight.new_zeros(d) if bilinear.bias is None else bilinear.bias
    dense = weight.new_empty(0, d) if layer is None else layer.weight
    dense_bias = weight.new_empty(0) if layer is None else layer.bias
    found: Tensor = _Routed.apply(  # type: ignore[no-untyped-call]
        items.contiguous(), stops, logits, iterations, weight, bias, dense, dense_bias
    )
    return found


class _Routed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        items: Tensor,
        stops: Tensor,
        logits: Tensor,
        iterations: int,
        *parameters: Tensor,
    ) -> Tensor:
        from .routing_kernel import interests

        found = items.new_empty(len(stops), logits.shape[1], len(parameters[0]))
        tensors = (items, stops, logits, *parameters, found)
        ctx.kept = interests(iterations, *(tensor.numpy() for tensor in tensors))
        ctx.save_for_backward(items, stops, found, *parameters)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from .routing_kernel import gradients, rows_with_gradient

        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("interests have no second derivative")
        items, stops, found, *parameters = (tensor.detach() for tensor in ctx.saved_tensors)
        weight, _, dense, _ = (parameter.numpy() for parameter in parameters)
        rows = grad.reshape(-1, grad.shape[-1]).contiguous().numpy()
        chosen = rows_with_gradient(rows)
        found_gradients = [torch.empty_like(tensor) for tensor in (items, *parameters)]
        gradients(
            rows[chosen], chosen, items.numpy(), stops.numpy(), weight, dense, found.numpy(),
            *ctx.kept, *(tensor.numpy() for tensor in found_gradients),
        )  # fmt: skip
        return found_gradients[0], None, None, None, *found_gradients[1:]
