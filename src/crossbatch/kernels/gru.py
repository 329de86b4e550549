"""The state of a GRU after the last item of each history.

The reset gate acts before the recurrent product, as in TF1's GRUCell:

    r, z = sigmoid(x_r + h W_r), sigmoid(x_z + h W_z)
    c    = tanh(x_c + (r * h) W_c)
    h'   = z * h + (1 - z) * c
"""

from __future__ import annotations

from typing import Any

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
from crossbatch.kernels.gru_compiled import gradients, pack, states, step_order, unpack
from crossbatch.kernels.products import multiply
from crossbatch.kernels.ragged import pad


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


class _States(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, stops: Tensor, *parameters: Tensor) -> Tensor:
        steps, order, source = step_order(array(stops), len(items))
        packed = torch.empty(items.shape)
        pack(array(items), source, packed.numpy())
        input_kernel, *kernels, bias = (parameter.detach() for parameter in parameters)
        active = multiply(packed, input_kernel, bias)
        final = items.new_zeros(len(stops), parameters[2].shape[0])
        before, reset = states(
            active.numpy(), steps, order, *(array(kernel) for kernel in kernels), final.numpy()
        )
        ctx.kept = active, torch.from_numpy(before), torch.from_numpy(reset)
        ctx.packed = packed, steps, order, source
        ctx.save_for_backward(*parameters[:3])
        return final

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("gru_states")
        packed, steps, order, source = ctx.packed
        input_kernel, *kernels = ctx.saved_tensors
        active, before, reset = ctx.kept
        of_active = active.clone()  # a second backward pass reads the activations again
        gradients(
            array(grad), steps, order, *(array(kernel) for kernel in kernels), of_active.numpy(),
            before.numpy(),
        )  # fmt: skip
        h = before.shape[1]
        first = int(steps[0]) if len(steps) else 0  # items that have no state before them
        later = of_active[first:]
        of_items = np.empty(packed.shape, dtype=np.float32)
        unpack(multiply(of_active, input_kernel.t()).numpy(), source, of_items)
        return (
            torch.from_numpy(of_items),
            None,
            multiply(packed.t(), of_active),
            multiply(before[first:].t(), later[:, : 2 * h]),
            multiply(reset[first:].t(), later[:, 2 * h :]),
            of_active.sum(dim=0),
        )
