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


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, gate_kernel: Tensor, candidate_kernel: Tensor, steps: list[int]
    ) -> Tensor:
        P, h = len(projected), candidate_kernel.shape[0]
        before, after_reset, candidate = (projected.new_empty(P, h) for _ in range(3))
        gates = projected.new_empty(P, 2 * h)
        state = projected.new_zeros(steps[0], h)  # rows that ran out keep their last state
        start = 0
        for n in steps:
            rows = slice(start, start + n)
            previous = before[rows].copy_(state[:n])
            gate = torch.addmm(projected[rows, : 2 * h], previous, gate_kernel, out=gates[rows])
            gate.sigmoid_()
            torch.mul(gate[:, :h], previous, out=after_reset[rows])
            torch.addmm(
                projected[rows, 2 * h :], after_reset[rows], candidate_kernel, out=candidate[rows]
            ).tanh_()
            torch.lerp(candidate[rows], previous, gate[:, h:], out=state[:n])
            start += n
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
        stop = len(before)
        for n in reversed(ctx.steps):
            rows = slice(stop - n, stop)
            d, d_step = d_state[:n], d_projected[rows]
            torch.mul(d, slope_z[rows], out=d_step[:, h : 2 * h])
            torch.mul(d, slope_c[rows], out=d_step[:, 2 * h :])
            d_reset_state = d_step[:, 2 * h :] @ candidate_kernel.T
            torch.mul(d_reset_state, slope_r[rows], out=d_step[:, :h])
            d.mul_(update[rows]).addcmul_(d_reset_state, reset[rows])
            d.addmm_(d_step[:, : 2 * h], gate_kernel.T)
            stop -= n
        d_gates = before.T @ d_projected[:, : 2 * h]
        d_candidate = after_reset.T @ d_projected[:, 2 * h :]
        return d_projected, d_gates, d_candidate, None
