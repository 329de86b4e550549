"""The state of a GRU after the last item of each history.

The reset gate acts before the recurrent product, as in TF1's GRUCell:

    r, z = sigmoid(x_r + h W_r), sigmoid(x_z + h W_z)
    c    = tanh(x_c + (r * h) W_c)
    h'   = z * h + (1 - z) * c
"""

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
from crossbatch.kernels.gru_compiled import gradients, states, step_order
from crossbatch.kernels.parallel import Part, equal_histories, run_parts
from crossbatch.kernels.products import multiply
from crossbatch.kernels.ragged import check_stops, pad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.kernels.compiler import Array


def padded_states(
    vectors: Tensor,
    mask: Tensor,
    input_kernel: Tensor,
    gate_kernel: Tensor,
    candidate_kernel: Tensor,
    bias: Tensor,
) -> Tensor:
    """States `[B, h]` of histories `[B, L, w]` with mask `[B, L]`: shapes are fixed, for export."""
    projected = vectors @ input_kernel + bias  # [B, L, 3h]
    x_gates, x_candidate = projected.tensor_split([gate_kernel.shape[1]], dim=-1)
    state = vectors.new_zeros(vectors.shape[0], gate_kernel.shape[0])
    for t in range(vectors.shape[1]):
        reset, update = (x_gates[:, t] + state @ gate_kernel).sigmoid().chunk(2, dim=-1)
        candidate = (x_candidate[:, t] + (reset * state) @ candidate_kernel).tanh()
        moved = update * state + (1 - update) * candidate
        state = torch.where(mask[:, t, None], moved, state)
    return state


def definition(items: Tensor, stops: Tensor, *parameters: Tensor) -> Tensor:
    """As `gru_states`, step by step over padded histories."""
    return padded_states(*pad(items, stops), *parameters)


def gru_states(items: Tensor, stops: Tensor, *parameters: Tensor) -> Tensor:
    """States `[B, h]`; zeros for an empty history.

    Args:
        items: `[P, w]` of all histories, end to end.
        stops: `[B]` int64, where each history ends.
        parameters: Kernels of the input `[w, 3h]` for r, z, c, of the gates `[h, 2h]` and of the
            candidate `[h, h]`, and the bias `[3h]`.
    """
    check_device(items, stops, *parameters)
    if not usable(items, *parameters, ids=[stops]):
        return definition(items, stops, *parameters)
    check_ids(stops=stops)
    _check(items, *parameters)
    final: Tensor = _States.apply(items, stops, *parameters)  # type: ignore[no-untyped-call]
    return final


def _check(
    items: Tensor, input_kernel: Tensor, gate_kernel: Tensor, candidate_kernel: Tensor, bias: Tensor
) -> None:
    """Raise `ValueError` unless all shapes follow from those of items and candidate kernel."""
    w, h = items.shape[-1], candidate_kernel.shape[-1]
    check_shapes(
        items=(items, (len(items), w)),
        input_kernel=(input_kernel, (w, 3 * h)),
        gate_kernel=(gate_kernel, (h, 2 * h)),
        candidate_kernel=(candidate_kernel, (h, h)),
        bias=(bias, (3 * h,)),
    )


class _Run:
    """The states of some histories, and what their gradients need besides.

    Args:
        items: `[P, w]` of these histories.
        stops: `[B]` where each ends.
        parameters: As in `gru_states`.
        final: `[B, h]` zeros, to which the states are written.
    """

    def __init__(
        self, items: Tensor, stops: Tensor, parameters: Sequence[Tensor], final: Tensor
    ) -> None:
        self.steps, self.order, self.source = _steps(stops, len(items))
        self.packed = items.index_select(0, self.source)
        input_kernel, *kernels, bias = parameters
        self.active = multiply(self.packed, input_kernel, bias)
        self.before, self.reset = [torch.empty(len(items), final.shape[1]) for _ in range(2)]
        self.before[: len(self.order)].zero_()
        arrays = [array(kernel) for kernel in kernels]
        states(
            self.active.numpy(), self.steps, self.order.numpy(), *arrays, self.before.numpy(),
            self.reset.numpy(), final.numpy(),
        )  # fmt: skip

    def gradients(
        self, grad: Tensor, parameters: Sequence[Tensor], of_items: Tensor
    ) -> list[Tensor]:
        """Those of the parameters; that of the items is written."""
        input_kernel, *kernels = parameters
        active = self.active.clone()  # a second backward pass reads the activations again
        back, first = grad.index_select(0, self.order), len(self.order)
        gradients(
            back.numpy(), self.steps, *[array(kernel) for kernel in kernels], active.numpy(),
            self.before.numpy(), torch.empty_like(back).numpy(),
        )  # fmt: skip
        h = self.before.shape[1]
        active[:first, :h] = 0  # at the first step there is no state that could be reset
        later = active[first:]
        place = np.empty(len(self.source), dtype=np.int64)
        place[self.source.numpy()] = np.arange(len(place))
        found = multiply(active, input_kernel.t())
        torch.index_select(found, 0, torch.from_numpy(place), out=of_items)
        return [
            multiply(self.packed.t(), active),
            multiply(self.before[first:].t(), later[:, : 2 * h]),
            multiply(self.reset[first:].t(), later[:, 2 * h :]),
            active.sum(dim=0),
        ]


def _steps(stops: Tensor, P: int) -> tuple[Array, Tensor, Tensor]:
    """How many histories reach each step, which they are, longest first, and their items by step.

    Raises:
        ValueError: Unless `stops` rise from 0 to P.
    """
    reaching = np.zeros(P + 1, dtype=np.int64)
    order, source = stops.new_empty(len(stops)), stops.new_empty(P)
    following = np.empty(P + 1, dtype=np.int64)
    count = step_order(array(stops), reaching, following, order.numpy(), source.numpy())
    if count < 0:
        raise ValueError("stops must rise from 0 and end at the number of items")
    return reaching[:count], order[: int(reaching[0])], source


class _States(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, stops: Tensor, *parameters: Tensor) -> Tensor:
        final = items.new_zeros(len(stops), parameters[2].shape[0])
        parts = equal_histories(stops, items.shape[0], 3 * final.shape[1])
        if len(parts) > 1:  # a part sees its own histories alone
            check_stops(stops, len(items))
        kept: list[Any] = [None] * len(parts)
        rows, given = items.detach(), [parameter.detach() for parameter in parameters]

        def run(part: Part) -> None:
            _, start, stop, first, last = part
            ends = stops[start:stop] - first
            kept[part.number] = _Run(rows[first:last], ends, given, final[start:stop])

        run_parts(run, parts)
        ctx.parts, ctx.kept, ctx.shape = parts, kept, items.shape
        ctx.save_for_backward(*parameters[:3])
        return final

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("gru_states")
        kernels = [kernel.detach() for kernel in ctx.saved_tensors]
        of_items = torch.empty(ctx.shape)
        found: list[Any] = [None] * len(ctx.parts)

        def run(part: Part) -> None:
            some, place = grad[part.start : part.stop], of_items[part.first : part.last]
            found[part.number] = ctx.kept[part.number].gradients(some, kernels, place)

        run_parts(run, ctx.parts)
        return of_items, None, *[sum(each[1:], start=each[0]) for each in zip(*found, strict=True)]
