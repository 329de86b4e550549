"""Behaviour-to-interest routing: which interest each item of a history belongs to.

capsules = route(history, mask, logits, bilinear, iterations=3)     # [B, K, d]
"""

from importlib.util import find_spec

import torch
from torch import Tensor, nn

HAS_NUMBA = find_spec("numba") is not None


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
        history: `[B, L, d]`.
        mask: `[B, L]`.
        logits: First routing logits `[B, K, L]`.
        bilinear: The shared map.
        iterations: At least 1.
    """
    with torch.no_grad():
        settle = _settled_compiled if _can_compile(history, logits) else _settled
        weights = settle(history, mask, logits, bilinear, iterations - 1)
    return _capsules(history, weights, bilinear)


def _settled(
    history: Tensor, mask: Tensor, logits: Tensor, bilinear: nn.Linear, rounds: int
) -> Tensor:
    """Weights `[B, K, L]` after some rounds of agreement."""
    for _ in range(rounds):
        capsules = _capsules(history, routing_weights(logits, mask), bilinear)
        agreement = torch.bmm(capsules @ bilinear.weight, history.transpose(1, 2))  # [B, K, L]
        if bilinear.bias is not None:
            agreement = agreement + (capsules @ bilinear.bias).unsqueeze(2)
        logits = logits + agreement
    return routing_weights(logits, mask)


def _settled_compiled(
    history: Tensor, mask: Tensor, logits: Tensor, bilinear: nn.Linear, rounds: int
) -> Tensor:
    """The same over real positions only, one history at a time, in numba."""
    from .routing_kernel import settle

    real = mask.flatten().nonzero().squeeze(1)  # [P]
    mapped = nn.functional.linear(history.flatten(0, 1).index_select(0, real), *_affine(bilinear))
    stops = mask.sum(dim=1).cumsum(dim=0)
    logits = logits.contiguous()
    weights = torch.zeros_like(logits)
    settle(mapped.numpy(), real.numpy(), stops.numpy(), logits.numpy(), rounds, weights.numpy())
    return weights


def _affine(bilinear: nn.Linear) -> tuple[Tensor, Tensor | None]:
    bias = bilinear.bias
    return bilinear.weight.detach(), None if bias is None else bias.detach()


def _can_compile(history: Tensor, logits: Tensor) -> bool:
    plain = history.device.type == "cpu" and history.dtype == logits.dtype == torch.float32
    rewritten = torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
    return plain and not rewritten and HAS_NUMBA


def _capsules(history: Tensor, weights: Tensor, bilinear: nn.Linear) -> Tensor:
    """Squashed sums `[B, K, d]` of mapped items with weights `[B, K, L]`."""
    sums = torch.bmm(weights.to(history.dtype), history) @ bilinear.weight.T
    if bilinear.bias is not None:
        sums = sums + weights.sum(dim=2, keepdim=True) * bilinear.bias
    return squash(sums)
