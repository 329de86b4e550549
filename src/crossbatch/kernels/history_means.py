"""Means of each history's vectors without padding: plain, or with learned weights by age.

An item's age is the number of items after it: the newest has age 0. With log-weights λ of the ages
the items of a history get the weights softmax(λ[age]).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    Array,
    array,
    check_device,
    check_ids,
    compiled_reordered,
    np,
    refuse_second_derivative,
    usable,
)
from crossbatch.kernels.parallel import Part, equal_histories, run_parts
from crossbatch.kernels.ragged import are_stops, check_stops, lengths


def mean_definition(items: Tensor, stops: Tensor) -> Tensor:
    """As `history_mean`, in plain torch."""
    check_stops(stops, items.shape[0])
    sizes = lengths(stops)
    bags = torch.arange(len(stops), device=stops.device).repeat_interleave(sizes)
    sums = items.new_zeros(len(stops), items.shape[1]).index_add(0, bags, items)
    return sums / sizes.clamp(min=1).unsqueeze(1)


def history_mean(items: Tensor, stops: Tensor) -> Tensor:
    """Means `[B, w]` of items `[P, w]`, in which all count alike; zeros for an empty history."""
    return recency_mean(items, stops, items.new_zeros(1))


def ages(stops: Tensor, num_items: int) -> Tensor:
    """`[P]` how many items of the same history come after each."""
    sizes = lengths(stops)
    last = (stops - 1).repeat_interleave(sizes, output_size=num_items)
    return last - torch.arange(num_items, device=stops.device)


def definition(items: Tensor, stops: Tensor, log_weights: Tensor) -> Tensor:
    """As `recency_mean`, in plain torch."""
    check_stops(stops, items.shape[0])
    B, P = len(stops), items.shape[0]
    row = torch.arange(B, device=stops.device).repeat_interleave(lengths(stops), output_size=P)
    logits = log_weights.to(items.dtype)[ages(stops, P).clamp(max=len(log_weights) - 1)]  # [P]
    peak = logits.new_full((B,), -torch.inf).scatter_reduce(0, row, logits.detach(), "amax")
    weights = (logits - peak[row]).exp()
    total = weights.new_zeros(B).index_add(0, row, weights)
    weights = weights / total[row]
    return items.new_zeros(B, items.shape[1]).index_add(0, row, items * weights.unsqueeze(1))


def recency_mean(items: Tensor, stops: Tensor, log_weights: Tensor) -> Tensor:
    """Weighted means `[B, w]`; zeros for an empty history.

    Args:
        items: `[P, w]` of all histories, end to end, oldest first.
        stops: `[B]` int64, where each history ends.
        log_weights: `[A]`, at least one; items older than A − 1 have the weight of that age.
    """
    if log_weights.dim() != 1 or len(log_weights) == 0:
        raise ValueError(
            f"log_weights must be one row of at least one number, got {list(log_weights.shape)}"
        )
    check_device(items, stops, log_weights)
    if items.dim() != 2 or not usable(items, log_weights, ids=[stops]):
        return definition(items, stops, log_weights)
    check_ids(stops=stops)
    mean: Tensor = _RecencyMean.apply(items, stops, log_weights)  # type: ignore[no-untyped-call]
    return mean


class _RecencyMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, stops: Tensor, log_weights: Tensor) -> Tensor:
        mean = torch.empty(len(stops), items.shape[1])
        ctx.items, ctx.stops, ctx.ages = array(items), array(stops), len(log_weights)
        ctx.weights = np.empty(len(items), dtype=np.float32)  # [P]
        if not are_stops(ctx.stops, len(ctx.items)):
            raise ValueError("stops must rise from 0 and end at the number of items")
        ctx.parts, given = equal_histories(stops, *items.shape), array(log_weights)

        def run(part: Part) -> None:
            _mean(ctx.items, ctx.stops, part.start, part.stop, given, ctx.weights, mean.numpy())

        run_parts(run, ctx.parts)
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor]:
        refuse_second_derivative("recency_mean")
        g, found = array(grad), np.empty_like(ctx.items)
        log_weights = np.zeros((len(ctx.parts), ctx.ages), dtype=np.float32)

        def run(part: Part) -> None:
            _mean_gradient(
                g, ctx.items, ctx.stops, part.start, part.stop, ctx.weights, found,
                log_weights[part.number],
            )  # fmt: skip

        run_parts(run, ctx.parts)
        return torch.from_numpy(found), None, torch.from_numpy(log_weights).sum(dim=0)


@compiled_reordered
def _mean(
    items: Array,
    stops: Array,
    first: int,
    last: int,
    log_weights: Array,
    weights: Array,
    mean: Array,
) -> None:
    """Write the weights `[P]` of items `[P, w]` in their histories, and the means `[B, w]`.

    Those of the histories `first` to `last`.
    """
    oldest, start = log_weights.shape[0] - 1, stops[first - 1] if first > 0 else 0
    for b in range(first, last):
        total, stop = mean[b], stops[b]
        for k in range(total.shape[0]):
            total[k] = 0
        peak = np.float32(-np.inf)
        for p in range(start, stop):
            peak = max(peak, log_weights[min(stop - 1 - p, oldest)])
        mass = np.float32(0)
        for p in range(start, stop):
            weights[p] = np.exp(log_weights[min(stop - 1 - p, oldest)] - peak)
            mass += weights[p]
        for p in range(start, stop):
            weights[p] /= mass
            weight, row = weights[p], items[p]
            for k in range(total.shape[0]):
                total[k] += weight * row[k]
        start = stop


@compiled_reordered
def _mean_gradient(
    grad: Array,
    items: Array,
    stops: Array,
    first: int,
    last: int,
    weights: Array,
    found: Array,
    log_weights: Array,
) -> None:
    """Write the gradients of the items `[P, w]`, and add those of the log-weights `[A]`.

    Those of the histories `first` to `last`.
    """
    oldest, start = log_weights.shape[0] - 1, stops[first - 1] if first > 0 else 0
    along = np.empty(items.shape[0], dtype=np.float32)
    for b in range(first, last):
        g, stop, mean = grad[b], stops[b], np.float32(0)
        for p in range(start, stop):
            row, place, weight, dot = items[p], found[p], weights[p], np.float32(0)
            for k in range(g.shape[0]):
                dot += g[k] * row[k]
                place[k] = weight * g[k]
            along[p] = dot
            mean += weight * dot
        for p in range(start, stop):
            log_weights[min(stop - 1 - p, oldest)] += weights[p] * (along[p] - mean)
        start = stop
