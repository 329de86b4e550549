"""Self-attention inside each history, without padding: of every item, or of the last one alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossbatch.kernels.attention_compiled import attend, gradients
from crossbatch.kernels.compiler import (
    array,
    check_device,
    check_shapes,
    np,
    refuse_second_derivative,
    usable,
)
from crossbatch.kernels.dropout import BITS, kept_definition, threshold
from crossbatch.kernels.parallel import Part, equal_histories, run_parts
from crossbatch.kernels.ragged import check_stops, lengths, pad

if TYPE_CHECKING:
    from crossbatch.kernels.compiler import Array


def definition(
    items: Tensor,
    stops: Tensor,
    heads: int,
    rate: float,
    seed: Tensor,
    queries: Tensor | None = None,
) -> Tensor:
    """As `attention`, over padded histories."""
    sizes = lengths(stops)
    padded, mask = pad(items, stops)  # [B, L, 3d or 2d], [B, L]
    L = mask.shape[1]
    asking = padded.shape[2] // 3 if queries is None else 0
    d = (padded.shape[2] - asking) // 2
    q = padded[..., :d] if queries is None else queries.unsqueeze(1)
    keys, values = padded[..., asking : asking + d], padded[..., asking + d :]
    q, keys, values = (
        x.unflatten(2, (heads, d // heads)).transpose(1, 2) for x in (q, keys, values)
    )
    order = torch.arange(L, device=items.device)
    i = order.unsqueeze(1) if queries is None else torch.zeros_like(order[:1].unsqueeze(1))
    visible = mask[:, None, None] if queries is not None else order <= i  # [B or 1, 1, Q, L]
    logits = q @ keys.transpose(2, 3) / math.sqrt(d // heads)
    logits = logits.masked_fill(~visible, -torch.inf)
    # A history of nothing has no weights at all.
    weights = logits.softmax(dim=3).masked_fill(~mask[:, None, None, :], 0.0)
    if rate:
        rows = sizes if queries is None else torch.ones_like(sizes)
        head = torch.arange(heads, device=items.device)[:, None, None]
        first = _places(sizes, rows, heads)[:, None, None, None]
        entries = (
            first + (head * rows[:, None, None, None] + i) * sizes[:, None, None, None] + order
        )
        weights = weights * kept_definition(entries, rate, seed) / (1 - rate)
    found: Tensor = (weights @ values).transpose(1, 2).flatten(2)  # [B, Q, d]
    return found.squeeze(1) if queries is not None else found[mask]


def attention(
    items: Tensor,
    stops: Tensor,
    heads: int,
    rate: float,
    seed: Tensor,
    queries: Tensor | None = None,
) -> Tensor:
    """What each item `[P, d]` sees in itself and the items before it, or each query in its history.

    Args:
        items: `[P, 3d]` query, key and value of every item, side by side; only key and value,
            `[P, 2d]`, where queries are given.
        stops: `[B]` int64, where each history ends.
        heads: Parts of each vector that attend on their own.
        rate: Share of the weights dropped; see `dropout`.
        seed: Of that, from `dropout.new_seed`.
        queries: `[B, d]` one of each history, which sees all of it; then the result is `[B, d]`,
            with zeros for an empty history.
    """
    check_device(items, stops, seed, queries)
    check_shapes(seed=(seed, (2,)))
    width = items.shape[-1] // (3 if queries is None else 2)
    if items.dim() != 2 or width * (3 if queries is None else 2) != items.shape[1] or width % heads:
        raise ValueError(
            f"items must be [P, {'3d' if queries is None else '2d'}] with d a multiple of {heads} "
            f"heads, got {list(items.shape)}"
        )
    if queries is not None:
        check_shapes(queries=(queries, (len(stops), width)))
    given = [items] if queries is None else [items, queries]
    check_stops(stops, len(items))
    if not usable(*given, ids=[stops, seed]):
        return definition(items, stops, heads, rate, seed, queries)
    found: Tensor = _Attention.apply(items, stops, heads, rate, seed, queries)  # type: ignore[no-untyped-call]
    return found


def _places(sizes: Tensor, rows: Tensor, heads: int) -> Tensor:
    """`[B]` where the weights of each history begin."""
    counts = sizes * rows * heads
    return counts.cumsum(0) - counts


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        items: Tensor,
        stops: Tensor,
        heads: int,
        rate: float,
        seed: Tensor,
        queries: Tensor | None,
    ) -> Tensor:
        packed = array(items)
        asking = packed if queries is None else array(queries)
        sizes = lengths(stops)
        rows = sizes if queries is None else torch.ones_like(sizes)
        places, ends = _places(sizes, rows, heads).numpy(), array(stops)
        size = int((sizes * rows).max()) if len(sizes) else 0  # weights of a head
        weights = np.empty(int((sizes * rows).sum()) * heads, dtype=np.float32)
        d = packed.shape[1] // (3 if queries is None else 2)
        found = items.new_empty(len(asking), d)
        if queries is not None:
            found.zero_()  # what an empty history sees
        noise = _noise(rate, seed)
        parts = equal_histories(stops, items.shape[0], 3 * d)

        def run(part: Part) -> None:
            attend(
                asking, packed, ends, *part[1:4], heads, places, noise, weights,
                np.empty(size, dtype=np.float32), found.numpy(),
            )  # fmt: skip

        run_parts(run, parts)
        ctx.kept = packed, asking, ends, size, heads, places, noise, weights
        ctx.parts, ctx.own_queries = parts, queries is None
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("attention")
        packed, asking, ends, size, *others = ctx.kept
        g, of_items = array(grad), np.empty_like(packed)
        of_queries = of_items if ctx.own_queries else np.zeros_like(asking)

        def run(part: Part) -> None:
            rooms = np.empty((2, size), dtype=np.float32)
            gradients(g, asking, packed, ends, *part[1:4], *others, rooms, of_queries, of_items)

        run_parts(run, ctx.parts)
        of_given = None if ctx.own_queries else torch.from_numpy(of_queries)
        return torch.from_numpy(of_items), None, None, None, None, of_given


def _noise(rate: float, seed: Tensor) -> Array:
    """`[3]` uint32: the threshold of `kept`, 0 for no dropout, and the seed."""
    return np.array([min(threshold(rate), 2**BITS - 1), *seed.tolist()], dtype=np.uint32)
