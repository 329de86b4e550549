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
from crossbatch.kernels.ragged import check_stops, pad
from crossbatch.kernels.routing_compiled import GROUP, gradients, route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.kernels.compiler import Array


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
        found = items.new_empty(B, K, d)
        # Every round reads each item for every interest.
        ctx.parts = equal_histories(stops, items.shape[0], iterations * K * d)
        if len(ctx.parts) > 1:  # a part sees its own histories alone
            check_stops(stops, len(items))
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
        of_items = np.zeros(items.shape, dtype=np.float32)
        written: list[Any] = [None] * len(ctx.parts)

        def run(part: Part) -> None:
            number, start, stop, first, last = part
            written[number] = _gradients(
                grad[start:stop], items[first:last], stops[start:stop] - first, parameters,
                found[start:stop], ctx.kept[number], of_items[first:last],
            )  # fmt: skip

        run_parts(run, ctx.parts)
        totals = [sum(each[1:], start=each[0]) for each in zip(*written, strict=True)]
        return torch.from_numpy(of_items), None, None, None, *map(torch.from_numpy, totals)


def _interests(
    items: Tensor,
    stops: Tensor,
    logits: Tensor,
    iterations: int,
    parameters: Sequence[Tensor],
    found: Tensor,
) -> tuple[Array, Array, Array]:
    """Write interests; return mapped items, routing weights and capsules `[B K, d]`."""
    weight, bias, dense, dense_bias = parameters
    K, d = logits.shape[1], len(weight)
    mapped, rows = torch.addmm(bias, items, weight.t()), found.view(-1, d)
    agreed = logits.clone(memory_format=torch.contiguous_format)
    if K % GROUP:
        agreed = torch.nn.functional.pad(agreed, (0, -K % GROUP), value=-torch.inf)
    shares = np.empty(agreed.shape, dtype=np.float32)
    sums = np.empty((agreed.shape[1], d), dtype=np.float32)
    capsules = torch.empty_like(rows) if len(dense) else rows
    if not route(
        iterations, mapped.numpy(), array(stops), agreed.numpy(), shares, shares.reshape(-1), sums,
        capsules.numpy(),
    ):  # fmt: skip
        raise ValueError("stops must rise from 0 and end at the number of items")
    if len(dense):
        torch.addmm(dense_bias, capsules, dense.t(), out=rows).relu_()
    return mapped.numpy(), shares, capsules.numpy()


def _gradients(
    grad: Tensor,
    items: Tensor,
    stops: Tensor,
    parameters: Sequence[Tensor],
    found: Tensor,
    kept: tuple[Array, Array, Array],
    of_items: Array,
) -> list[Array]:
    """Those of the parameters; those of the items are added to zeros."""
    weight, _, dense, _ = parameters
    K, d = found.shape[1:]
    rows = grad.reshape(-1, d)
    chosen = rows.abs().amax(dim=1).nonzero().squeeze(1)  # with a hard readout one of a history
    back, R = rows.index_select(0, chosen), len(chosen)
    found_of = [np.zeros(tensor.shape, dtype=np.float32) for tensor in parameters]
    gradients(
        chosen.numpy(), K, array(items), array(stops), array(weight), array(dense),
        found.view(-1, d).numpy(), *kept, back.numpy(), np.empty((R + 1, d), dtype=np.float32),
        np.zeros((R, items.shape[1]), dtype=np.float32), of_items, *found_of,
    )  # fmt: skip
    return found_of
