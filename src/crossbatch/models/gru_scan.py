"""The recurrence of a GRU whose reset gate acts before the recurrent product (TF1's GRUCell).

    r, z = sigmoid(x_r + h W_r), sigmoid(x_z + h W_z)
    c    = tanh(x_c + (r * h) W_c)
    h'   = z * h + (1 - z) * c

The backward pass is written out: it works on whole-sequence buffers and multiplies for the weights
once, where autograd would do both at every step.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def gru_scan(
    projected: Tensor, gate_kernel: Tensor, candidate_kernel: Tensor, steps: list[int]
) -> Tensor:
    """The state after the last item of each sequence.

    Args:
        projected: Input part of the pre-activations `[P, 3h]`, in the order r, z, c; the rows of
            step 0 come first, then those of step 1, and so on (`PackedSequence.data`).
        gate_kernel: `[h, 2h]`, (W_r, W_z).
        candidate_kernel: `[h, h]`, W_c.
        steps: Sequences still running at each step, never growing (`PackedSequence.batch_sizes`).

    Returns:
        `[steps[0], h]`.
    """
    final: Tensor = _Scan.apply(projected, gate_kernel, candidate_kernel, steps)  # type: ignore[no-untyped-call]
    return final


def gru_states(items: Tensor, steps: Tensor, order: Tensor, *kernels: Tensor) -> Tensor:
    """The same from the items, compiled.

    Args:
        items: `[P, d]`, in the order of `PackedSequence.data`.
        steps: `PackedSequence.batch_sizes`.
        order: `[B]` the row of the result of each sequence (`PackedSequence.sorted_indices`).
        kernels: Of the input `[d, 3h]`, the gates `[h, 2h]` and the candidate `[h, h]`; and the
            bias `[3h]`.

    Returns:
        `[B, h]`.
    """
    final: Tensor = _States.apply(items.contiguous(), steps, order, *kernels)  # type: ignore[no-untyped-call]
    return final


class _States(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, steps: Tensor, order: Tensor, *kernels: Tensor) -> Tensor:
        from .gru_kernel import states

        final = items.new_empty(len(order), kernels[2].shape[0])
        arrays = [tensor.numpy() for tensor in (items, steps, order, *kernels, final)]
        ctx.kept = states(*arrays)
        ctx.save_for_backward(items, steps, order, *kernels)
        return final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from .gru_kernel import gradients

        saved = [tensor.detach() for tensor in ctx.saved_tensors]
        found = [torch.empty_like(tensor) for tensor in (saved[0], *saved[3:])]
        activations, *others = ctx.kept
        arrays = [
            *(tensor.numpy() for tensor in (grad.contiguous(), *saved[:-1])),
            *(activations.copy(), *others),
            *(tensor.numpy() for tensor in found),
        ]
        gradients(*arrays)
        return found[0], None, None, *found[1:]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, gate_kernel: Tensor, candidate_kernel: Tensor, steps: list[int]
    ) -> Tensor:
        P, h = len(projected), candidate_kernel.shape[0]
        before, after_reset, candidate = (projected.new_empty(P, h) for _ in range(3))
        gates = projected.new_empty(P, 2 * h)
        state = projected.new_zeros(steps[0], h)  # rows that ran out keep their last state
        # All views at once: made step by step they would cost as much as the products.
        for n, x_gates, x_candidate, previous, gate, reset, update, reset_state, new in zip(
            steps,
            projected[:, : 2 * h].split(steps),
            projected[:, 2 * h :].split(steps),
            before.split(steps),
            gates.split(steps),
            gates[:, :h].split(steps),
            gates[:, h:].split(steps),
            after_reset.split(steps),
            candidate.split(steps),
            strict=True,
        ):
            running = state[:n]
            previous.copy_(running)
            torch.addmm(x_gates, previous, gate_kernel, out=gate).sigmoid_()
            torch.mul(reset, previous, out=reset_state)
            torch.addmm(x_candidate, reset_state, candidate_kernel, out=new).tanh_()
            torch.lerp(new, previous, update, out=running)
        ctx.steps = steps
        ctx.save_for_backward(gate_kernel, candidate_kernel, before, gates, after_reset, candidate)
        return state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        gate_kernel, candidate_kernel, before, gates, after_reset, candidate = ctx.saved_tensors
        h = candidate_kernel.shape[0]
        reset, update = gates[:, :h], gates[:, h:]
        # d(pre-activation) / d(state or reset state), for all steps at once.
        slope_c = (1 - update) * (1 - candidate.square())
        slope_z = (before - candidate) * update * (1 - update)
        slope_r = before * reset * (1 - reset)
        d_projected = grad.new_empty(len(before), 3 * h)
        d_state = grad.clone()
        views = zip(
            ctx.steps,
            d_projected[:, :h].split(ctx.steps),
            d_projected[:, h : 2 * h].split(ctx.steps),
            d_projected[:, 2 * h :].split(ctx.steps),
            d_projected[:, : 2 * h].split(ctx.steps),
            slope_r.split(ctx.steps),
            slope_z.split(ctx.steps),
            slope_c.split(ctx.steps),
            reset.split(ctx.steps),
            update.split(ctx.steps),
            strict=True,
        )
        for n, d_r, d_z, d_c, d_gate, by_r, by_z, by_c, r, z in reversed(list(views)):
            d = d_state[:n]
            torch.mul(d, by_z, out=d_z)
            torch.mul(d, by_c, out=d_c)
            d_reset_state = d_c @ candidate_kernel.T
            torch.mul(d_reset_state, by_r, out=d_r)
            d.mul_(z).addcmul_(d_reset_state, r).addmm_(d_gate, gate_kernel.T)
        d_gates = before.T @ d_projected[:, : 2 * h]
        d_candidate = after_reset.T @ d_projected[:, 2 * h :]
        return d_projected, d_gates, d_candidate, None
