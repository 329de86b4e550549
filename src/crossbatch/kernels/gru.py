"""The state of a GRU after the last item of each history.

The reset gate acts before the recurrent product, as in TF1's GRUCell:

    r, z = sigmoid(x_r + h W_r), sigmoid(x_z + h W_z)
    c    = tanh(x_c + (r * h) W_c)
    h'   = z * h + (1 - z) * c

Step by step a batch of histories is twenty products of small matrices with some ten operations
around each; from Python every one of them costs as much to call as to do. The compiled form works
on all histories that reach a step at once, longest first.
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
    check_shapes,
    compiled,
    intrinsic,
    np,
    refuse_second_derivative,
    usable,
)
from crossbatch.kernels.ragged import are_stops, pad

product, product_t = intrinsic("product"), intrinsic("product_t")
t_product = intrinsic("t_product")
copy = intrinsic("copy")
sigmoid, tanh = intrinsic("sigmoid"), intrinsic("tanh")


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
        steps, order, source = _step_order(array(stops), len(items))
        packed = np.empty((len(items), items.shape[1]), dtype=np.float32)
        _pack(array(items), source, packed)
        final = items.new_zeros(len(stops), parameters[2].shape[0])
        ctx.kept = _states(packed, steps, order, *map(array, parameters), final.numpy())
        ctx.packed = packed, steps, order, source
        ctx.save_for_backward(*parameters[:3])
        return final

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("gru_states")
        packed, steps, order, source = ctx.packed
        kernels = ctx.saved_tensors
        bias_size = kernels[0].shape[1]
        found = [torch.zeros(kernel.shape) for kernel in kernels] + [torch.zeros(bias_size)]
        of_packed, of_items = np.empty_like(packed), np.empty_like(packed)
        active, *others = ctx.kept
        _gradients(
            array(grad), packed, steps, order, *map(array, kernels), active.copy(), *others,
            of_packed, *(tensor.numpy() for tensor in found),
        )  # fmt: skip
        _unpack(of_packed, source, of_items)
        return torch.from_numpy(of_items), None, *found


@compiled
def _step_order(stops: Array, P: int) -> Any:
    """How to take histories step by step, the longest first.

    Returns:
        How many histories reach each step; which they are, longest first; and for each row of the
        step-by-step order, its row among the histories' items `[P]`.
    """
    if not are_stops(stops, P):
        raise ValueError("stops must rise from 0 and end at the number of items")
    B = stops.shape[0]
    longest, start = 0, 0
    for b in range(B):
        longest = max(longest, stops[b] - start)
        start = stops[b]
    reaching = np.zeros(longest + 1, dtype=np.int64)  # histories of more than t items
    start = 0
    for b in range(B):
        for t in range(stops[b] - start):
            reaching[t] += 1
        start = stops[b]
    order = np.empty(reaching[0], dtype=np.int64)
    following = reaching.copy()  # by t: the place after the last history of t items
    for b in range(B - 1, -1, -1):
        size = stops[b] - (stops[b - 1] if b > 0 else 0)
        if size > 0:
            following[size - 1] -= 1
            order[following[size - 1]] = b
    source = np.empty(P, dtype=np.int64)
    place = 0
    for t in range(longest):
        for i in range(reaching[t]):
            b = order[i]
            source[place] = (stops[b - 1] if b > 0 else 0) + t
            place += 1
    return reaching[:longest], order, source


@compiled
def _pack(rows: Array, source: Array, packed: Array) -> None:
    for p in range(source.shape[0]):
        copy(rows[source[p]], packed[p])


@compiled
def _unpack(packed: Array, source: Array, rows: Array) -> None:
    for p in range(source.shape[0]):
        copy(packed[p], rows[source[p]])


@compiled
def _states(
    items: Array,
    steps: Array,
    order: Array,
    input_kernel: Array,
    gate_kernel: Array,
    candidate_kernel: Array,
    bias: Array,
    final: Array,
) -> Any:
    """Write the state after the last item of each history to `final` `[B, h]`.

    Args:
        items: `[P, w]`; those of the first step come first, then those of the second, and so on.
        steps: Histories still running at each step, never growing.
        order: `[steps[0]]` the row of `final` of each history.
        input_kernel: As in `gru_states`, like those that follow.
        gate_kernel: …
        candidate_kernel: …
        bias: …
        final: `[B, h]`.

    Returns:
        What `_gradients` needs: activations r, z, c `[P, 3h]`, states before each step `[P, h]`,
        and the same after the reset gate `[P, h]`.
    """
    P, h = items.shape[0], candidate_kernel.shape[0]
    active = np.empty((P, 3 * h), dtype=np.float32)
    before = np.empty((P, h), dtype=np.float32)
    reset = np.empty((P, h), dtype=np.float32)
    for p in range(P):
        copy(bias, active[p])
    product(items, input_kernel, active, 1)
    start = 0
    for t in range(steps.shape[0]):
        n = steps[t]
        stop = start + n
        continuing = steps[t + 1] if t + 1 < steps.shape[0] else 0
        if t == 0:  # states are zero: the products are too
            for i in range(n):
                _clear(before[i])
        else:
            product(before[start:stop], gate_kernel, active[start:stop, : 2 * h], 1)
        for i in range(start, stop):
            _gate(active[i], before[i], reset[i])
        if t > 0:
            product(reset[start:stop], candidate_kernel, active[start:stop, 2 * h :], 1)
        for i in range(n):
            following = before[stop + i] if i < continuing else final[order[i]]
            _move(active[start + i], before[start + i], following)
        start = stop
    return active, before, reset


@compiled
def _gate(active: Array, before: Array, reset: Array) -> None:
    """Pre-activations of r and z `[3h]` to gates; the state after the reset gate."""
    h = before.shape[0]
    for j in range(2 * h):
        active[j] = sigmoid(active[j])
    for j in range(h):
        reset[j] = active[j] * before[j]


@compiled
def _move(active: Array, before: Array, following: Array) -> None:
    """Pre-activation of c to the candidate; the state after the step."""
    h = before.shape[0]
    update, candidate = active[h : 2 * h], active[2 * h :]
    for j in range(h):
        candidate[j] = tanh(candidate[j])
        following[j] = candidate[j] + update[j] * (before[j] - candidate[j])


@compiled
def _gradients(
    grad: Array,
    items: Array,
    steps: Array,
    order: Array,
    input_kernel: Array,
    gate_kernel: Array,
    candidate_kernel: Array,
    active: Array,
    before: Array,
    reset: Array,
    grad_items: Array,
    grad_input_kernel: Array,
    grad_gate_kernel: Array,
    grad_candidate_kernel: Array,
    grad_bias: Array,
) -> None:
    """Write the gradients of everything, from `grad` `[B, h]`; `active` is overwritten.

    Args:
        grad: Gradient of `final`.
        items: As in `_states`, like those that follow.
        steps: …
        order: …
        input_kernel: …
        gate_kernel: …
        candidate_kernel: …
        active: From `_states`; afterwards the gradient of the pre-activations.
        before: From `_states`.
        reset: From `_states`.
        grad_items: `[P, w]`.
        grad_input_kernel: `[w, 3h]`.
        grad_gate_kernel: `[h, 2h]`.
        grad_candidate_kernel: `[h, h]`.
        grad_bias: `[3h]`.
    """
    P, h = before.shape
    if P == 0:
        return  # the caller's gradients are zeros
    first = steps[0]  # items of the first step: no state before them
    back = np.empty((first, h), dtype=np.float32)  # gradient of the running states
    through_reset = np.empty((first, h), dtype=np.float32)
    for i in range(first):
        copy(grad[order[i]], back[i])
    stop = P
    for t in range(steps.shape[0] - 1, -1, -1):
        n = steps[t]
        start = stop - n
        for i in range(n):
            _back_to_candidate(back[i], before[start + i], active[start + i])
        if t > 0:
            product_t(active[start:stop, 2 * h :], candidate_kernel, through_reset[:n], 0)
            for i in range(n):
                _back_to_gates(back[i], through_reset[i], before[start + i], active[start + i])
            product_t(active[start:stop, : 2 * h], gate_kernel, back[:n], 1)
        else:
            for i in range(n):
                _clear(active[i, :h])  # nothing was reset
        stop = start
    t_product(before[first:], active[first:, : 2 * h], grad_gate_kernel, 0)
    t_product(reset[first:], active[first:, 2 * h :], grad_candidate_kernel, 0)
    t_product(items, active, grad_input_kernel, 0)
    product_t(active, input_kernel, grad_items, 0)
    for p in range(P):
        for j in range(3 * h):
            grad_bias[j] += active[p, j]


@compiled
def _clear(row: Array) -> None:
    for j in range(row.shape[0]):
        row[j] = 0


@compiled
def _back_to_candidate(back: Array, before: Array, active: Array) -> None:
    """Gradients of the pre-activations of z and c take their places; `back` is of z·h alone."""
    h = back.shape[0]
    one = np.float32(1)
    update, candidate = active[h : 2 * h], active[2 * h :]
    for j in range(h):
        z, c, d = update[j], candidate[j], back[j]
        part = d * (one - z)
        back[j] = d * z
        update[j] = part * z * (before[j] - c)
        candidate[j] = part * (one - c * c)


@compiled
def _back_to_gates(back: Array, through_reset: Array, before: Array, active: Array) -> None:
    """The gradient of the pre-activation of r takes its place; `back` gains that of r·h."""
    for j in range(back.shape[0]):
        r, d = active[j], through_reset[j]
        back[j] += d * r
        active[j] = d * before[j] * r * (np.float32(1) - r)
