"""Vectors at length 1, safe at zero: a zero vector stays zero and passes no gradient.

`torch.nn.functional.normalize` would give a zero vector a gradient of 1 / eps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    Array,
    array,
    compiled_reordered,
    np,
    refuse_second_derivative,
    usable,
)

TINY = 1e-8  # a shorter vector has no direction


def definition(vectors: Tensor) -> Tensor:
    """`vectors` `[*, d]` at length 1."""
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    tiny = norm < TINY
    return torch.where(tiny, 0.0, vectors / norm.masked_fill(tiny, 1.0))


def unit_vectors(vectors: Tensor) -> Tensor:
    """`vectors` `[*, d]` at length 1.

    Half precision becomes float32, because a rounded unit vector no longer has length 1.
    """
    if vectors.dtype in (torch.bfloat16, torch.float16):
        vectors = vectors.float()
    if vectors.numel() == 0 or vectors.dim() == 0 or not usable(vectors):
        return definition(vectors)
    units: Tensor = _UnitVectors.apply(vectors)  # type: ignore[no-untyped-call]
    return units


class _UnitVectors(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        rows = array(vectors).reshape(-1, vectors.shape[-1])
        units, lengths = np.empty_like(rows), np.empty(len(rows), dtype=np.float32)
        _unit(rows, units, lengths)
        ctx.units, ctx.lengths = units, lengths
        return torch.from_numpy(units).view(vectors.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        refuse_second_derivative("unit_vectors")
        rows = array(grad).reshape(ctx.units.shape)
        found = np.empty_like(rows)
        _unit_gradient(rows, ctx.units, ctx.lengths, found)
        return torch.from_numpy(found).view(grad.shape)


@compiled_reordered
def _unit(vectors: Array, units: Array, lengths: Array) -> None:
    """Write directions `[n, d]` and lengths `[n]` of vectors `[n, d]`."""
    for n in range(vectors.shape[0]):
        source, place = vectors[n], units[n]
        square = np.float32(0)
        for k in range(source.shape[0]):
            square += source[k] * source[k]
        lengths[n] = np.sqrt(square)
        factor = np.float32(0) if lengths[n] < TINY else np.float32(1) / lengths[n]
        for k in range(source.shape[0]):
            place[k] = source[k] * factor


@compiled_reordered
def _unit_gradient(grad: Array, units: Array, lengths: Array, found: Array) -> None:
    """Write the gradient `[n, d]` of the vectors: (g − (g·unit) unit) / length."""
    for n in range(grad.shape[0]):
        g, direction, place = grad[n], units[n], found[n]
        along = np.float32(0)
        for k in range(g.shape[0]):
            along += g[k] * direction[k]
        factor = np.float32(0) if lengths[n] < TINY else np.float32(1) / lengths[n]
        for k in range(g.shape[0]):
            place[k] = (g[k] - along * direction[k]) * factor
