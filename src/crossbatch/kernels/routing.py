"""MIND's interests: capsules of a history's items by dynamic routing, then a dense ReLU layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    array,
    check_device,
    check_ids,
    check_shapes,
    np,
    refuse_second_derivative,
    usable,
)
from crossbatch.kernels.parallel import Part, equal_histories, run_parts
from crossbatch.kernels.ragged import are_stops, pad
from crossbatch.kernels.routing_compiled import GROUP, route, spread, sum_chosen

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    exact = capsules.to(torch.promote_types(capsules.dtype, torch.float32))  # 1e-9 is 0 in 16 bits
    square = exact.square().sum(dim=-1, keepdim=True)
    return (exact * (square / (1 + square) / (square + 1e-9).sqrt())).to(capsules.dtype)


def padded_interests(
    vectors: Tensor,
    mask: Tensor,
    logits: Tensor,
    iterations: int,
    weight: Tensor,
    bias: Tensor | None,
    dense: Tensor | None,
    dense_bias: Tensor | None,
) -> Tensor:
    """Interests `[B, K, d]` of histories `[B, L, w]` with mask `[B, L]`, in plain torch.

    The first routing logits are `[B, K, L]`; other arguments are those of `routed_interests`.

    Only the last weighted sum carries gradient; the rounds before choose its weights. The map of
    items is applied to the K weighted sums instead of the L items: by linearity the same.
    """
    with torch.no_grad():
        for _ in range(iterations - 1):
            capsules = _capsules(vectors, routing_weights(logits, mask), weight, bias)
            agreement = torch.bmm(capsules @ weight, vectors.transpose(1, 2))  # [B, K, L]
            if bias is not None:
                agreement = agreement + (capsules @ bias).unsqueeze(2)
            logits = logits + agreement
        shares = routing_weights(logits, mask)
    capsules = _capsules(vectors, shares, weight, bias)
    if dense is None:
        return capsules
    return torch.nn.functional.linear(capsules, dense, dense_bias).relu()


def _capsules(vectors: Tensor, shares: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Squashed sums `[B, K, d]` of mapped items with weights `[B, K, L]`."""
    sums = torch.bmm(shares.to(vectors.dtype), vectors) @ weight.T
    if bias is not None:
        sums = sums + shares.sum(dim=2, keepdim=True) * bias
    return squash(sums)


def definition(
    items: Tensor, stops: Tensor, logits: Tensor, iterations: int, *parameters: Tensor | None
) -> Tensor:
    """As `routed_interests`, over padded histories."""
    vectors, mask = pad(items, stops)
    padded_logits, _ = pad(logits, stops)
    return padded_interests(
        vectors,
        mask,
        padded_logits.transpose(1, 2),
        iterations,
        *parameters,  # type: ignore[arg-type]
    )


def routed_interests(
    items: Tensor, stops: Tensor, logits: Tensor, iterations: int, *parameters: Tensor | None
) -> Tensor:
    """Interests `[B, K, d]`; those of an empty history are what the layer makes of zeros.

    Args:
        items: `[P, w]` of all histories, end to end.
        stops: `[B]` int64, where each history ends.
        logits: First routing logits `[P, K]`; −inf for interests that a history does not have.
        iterations: Rounds of routing, at least 1.
        parameters: The shared map of items `[d, w]`, its bias `[d]` or None, the layer behind the
            capsules `[d, d]` or None for none, and its bias `[d]` or None.
    """
    weight, bias, dense, dense_bias = parameters
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    if logits.dim() != 2 or len(logits) != len(items) or logits.shape[1] == 0:
        raise ValueError(
            f"logits must have shape [{len(items)}, K], one row for each item and K at least 1, "
            f"got {list(logits.shape)}"
        )
    given = [tensor for tensor in parameters if tensor is not None]
    check_device(items, stops, logits, *given)
    if not usable(items, logits, *given, ids=[stops]):
        return definition(items, stops, logits, iterations, *parameters)
    check_ids(stops=stops)
    assert weight is not None
    d = len(weight)
    if bias is None:
        bias = weight.new_zeros(d)
    if dense is None:
        dense, dense_bias = weight.new_empty(0, d), weight.new_empty(0)
    elif dense_bias is None:
        dense_bias = weight.new_zeros(d)
    check_shapes(
        items=(items, (len(items), items.shape[-1])),
        weight=(weight, (d, items.shape[-1])),
        bias=(bias, (d,)),
        dense=(dense, (len(dense) and d, d)),
        dense_bias=(dense_bias, (len(dense),)),
    )
    found: Tensor = _Routed.apply(  # type: ignore[no-untyped-call]
        items, stops, logits, iterations, weight, bias, dense, dense_bias
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
        B, K, d = len(stops), logits.shape[1], len(parameters[0])
        if not are_stops(array(stops), len(items)):
            raise ValueError("stops must rise from 0 and end at the number of items")
        found = items.new_empty(B, K, d)
        # Every round reads each item for every interest.
        ctx.parts = equal_histories(stops, items.shape[0], iterations * K * d)
        ctx.kept = [None] * len(ctx.parts)

        def run(part: Part) -> None:
            number, start, stop, first, last = part
            some = items[first:last], stops[start:stop] - first, logits[first:last]
            ctx.kept[number] = _interests(*some, iterations, parameters, found[start:stop])

        run_parts(run, ctx.parts)
        ctx.save_for_backward(items, stops, found, *parameters)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("routed_interests")
        items, stops, found, *parameters = ctx.saved_tensors
        of_items = torch.zeros_like(items, memory_format=torch.contiguous_format)
        written: list[Any] = [None] * len(ctx.parts)

        def run(part: Part) -> None:
            number, start, stop, first, last = part
            written[number] = _gradients(
                grad[start:stop], items[first:last], stops[start:stop] - first, parameters,
                found[start:stop], *ctx.kept[number], of_items[first:last],
            )  # fmt: skip

        run_parts(run, ctx.parts)
        totals = [sum(each[1:], start=each[0]) for each in zip(*written, strict=True)]
        return of_items, None, None, None, *totals


def _interests(
    items: Tensor,
    stops: Tensor,
    logits: Tensor,
    iterations: int,
    parameters: Sequence[Tensor],
    found: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write interests; return mapped items, routing weights and capsules `[B K, d]`."""
    weight, bias, dense, dense_bias = parameters
    (P, K), d = logits.shape, len(weight)
    full = (K + GROUP - 1) // GROUP * GROUP
    mapped, rows = torch.addmm(bias, items, weight.t()), found.view(-1, d)
    agreed, shares = torch.full((P, full), -torch.inf), torch.empty(P, full)
    agreed[:, :K] = logits
    capsules = torch.empty_like(rows) if len(dense) else rows
    route(
        iterations, mapped.numpy(), array(stops), agreed.numpy(), shares.numpy(),
        shares.view(-1).numpy(), np.empty((full, d), dtype=np.float32), capsules.numpy(),
    )  # fmt: skip
    if len(dense):
        torch.addmm(dense_bias, capsules, dense.t(), out=rows).relu_()
    return mapped, shares, capsules


def _gradients(
    grad: Tensor,
    items: Tensor,
    stops: Tensor,
    parameters: Sequence[Tensor],
    found: Tensor,
    mapped: Tensor,
    shares: Tensor,
    capsules: Tensor,
    of_items: Tensor,
) -> tuple[Tensor, ...]:
    """Those of the parameters; those of the items are added to zeros."""
    weight, bias, dense, dense_bias = parameters
    K, d = found.shape[1:]
    rows = grad.reshape(-1, d)
    chosen = rows.abs().amax(dim=1).nonzero().squeeze(1)  # with a hard readout one of a history
    back = rows.index_select(0, chosen)
    of_dense, of_dense_bias = torch.zeros_like(dense), torch.zeros_like(dense_bias)
    if len(dense):
        back *= found.view(-1, d).index_select(0, chosen) > 0
        of_dense = back.t() @ capsules.index_select(0, chosen)
        of_dense_bias = back.sum(dim=0)
        back = back @ dense
    raw, of_bias = items.new_zeros(len(chosen), items.shape[1]), torch.zeros_like(bias)
    numbers, ends, weights = chosen.numpy(), stops.numpy(), shares.numpy()
    sum_chosen(
        numbers, K, array(items), mapped.numpy(), ends, weights, back.numpy(), raw.numpy(),
        np.empty(d, dtype=np.float32), of_bias.numpy(),
    )  # fmt: skip
    of_weight = back.t() @ raw
    spread(numbers, K, ends, weights, (back @ weight).numpy(), of_items.numpy())
    return of_weight, of_bias, of_dense, of_dense_bias
