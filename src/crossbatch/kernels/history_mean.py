"""The mean of each history's vectors, without padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    Array,
    array,
    check_device,
    check_ids,
    compiled,
    intrinsic,
    np,
    refuse_second_derivative,
    usable,
)
from crossbatch.kernels.ragged import are_stops, check_stops, lengths

copy = intrinsic("copy")


def definition(items: Tensor, stops: Tensor) -> Tensor:
    """As `history_mean`, in plain torch."""
    check_stops(stops, items.shape[0])
    sizes = lengths(stops)
    bags = torch.arange(len(stops), device=stops.device).repeat_interleave(sizes)
    sums = items.new_zeros(len(stops), items.shape[1]).index_add(0, bags, items)
    return sums / sizes.clamp(min=1).unsqueeze(1)


def history_mean(items: Tensor, stops: Tensor) -> Tensor:
    """Means `[B, w]`; zeros for an empty history.

    Args:
        items: `[P, w]` of all histories, end to end.
        stops: `[B]` int64, where each history ends.
    """
    check_device(items, stops)
    if items.dim() != 2 or not usable(items, ids=[stops]):
        return definition(items, stops)
    check_ids(stops=stops)
    mean: Tensor = _HistoryMean.apply(items, stops)  # type: ignore[no-untyped-call]
    return mean


class _HistoryMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, stops: Tensor) -> Tensor:
        ctx.stops, ctx.shape = array(stops), tuple(items.shape)
        mean = torch.empty(len(stops), items.shape[1])
        _mean(array(items), ctx.stops, mean.numpy())
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        refuse_second_derivative("history_mean")
        found = np.empty(ctx.shape, dtype=np.float32)
        _mean_gradient(array(grad), ctx.stops, found)
        return torch.from_numpy(found), None


@compiled
def _mean(items: Array, stops: Array, mean: Array) -> None:
    """Write the means `[B, w]` of items `[P, w]`."""
    if not are_stops(stops, items.shape[0]):
        raise ValueError("stops must rise from 0 and end at the number of items")
    start = 0
    for b in range(stops.shape[0]):
        total, share = mean[b], np.float32(1) / np.float32(max(stops[b] - start, 1))
        for k in range(total.shape[0]):
            total[k] = 0
        for p in range(start, stops[b]):
            row = items[p]
            for k in range(total.shape[0]):
                total[k] += row[k]
        for k in range(total.shape[0]):
            total[k] *= share
        start = stops[b]


@compiled
def _mean_gradient(grad: Array, stops: Array, found: Array) -> None:
    """Write the gradient `[P, w]` of the items from that of the means `[B, w]`."""
    part = np.empty(grad.shape[1], dtype=np.float32)
    start = 0
    for b in range(stops.shape[0]):
        share = np.float32(1) / np.float32(max(stops[b] - start, 1))
        for k in range(part.shape[0]):
            part[k] = grad[b, k] * share
        for p in range(start, stops[b]):
            copy(part, found[p])
        start = stops[b]
