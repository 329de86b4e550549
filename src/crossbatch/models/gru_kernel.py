"""A GRU over packed histories compiled by numba, the way back included.

Step by step a batch of histories is twenty products of small matrices with some ten operations
around each; from Python every one of them costs as much to call as to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from crossbatch.kernels.activations import sigmoid, tanh
from crossbatch.kernels.products import product, product_t, t_product

if TYPE_CHECKING:
    Array = np.ndarray


@njit(cache=True, error_model="numpy", nogil=True)
def states(
    items: Array,
    steps: Array,
    order: Array,
    input_kernel: Array,
    gate_kernel: Array,
    candidate_kernel: Array,
    bias: Array,
    final: Array,
) -> tuple[Array, Array, Array]:
    """Write the state after the last item of each history.

    Args:
        items: `[P, w]`; those of the first step come first, then those of the second, and so on.
        steps: Histories still running at each step, never growing.
        order: `[steps[0]]` the row of `final` of each history.
        input_kernel: `[w, 3h]` for r, z, c.
        gate_kernel: `[h, 2h]`.
        candidate_kernel: `[h, h]`.
        bias: `[3h]`.
        final: `[B, h]`.

    Returns:
        What `gradients` needs: activations r, z, c `[P, 3h]`, states before each step `[P, h]`, and
        the same after the reset gate `[P, h]`.
    """
    P, h = items.shape[0], candidate_kernel.shape[0]
    active = np.empty((P, 3 * h), dtype=np.float32)
    before = np.empty((P, h), dtype=np.float32)
    reset = np.empty((P, h), dtype=np.float32)
    for p in range(P):
        active[p] = bias
    product(items, input_kernel, active, 1)
    start = 0
    for t in range(steps.shape[0]):
        n = steps[t]
        stop = start + n
        going_on = steps[t + 1] if t + 1 < steps.shape[0] else 0
        if t == 0:  # states are zero: the products are too
            before[:n] = 0
        else:
            product(before[start:stop], gate_kernel, active[start:stop, : 2 * h], 1)
        for i in range(start, stop):
            _gate(active[i], before[i], reset[i])
        if t > 0:
            product(reset[start:stop], candidate_kernel, active[start:stop, 2 * h :], 1)
        for i in range(n):
            following = before[stop + i] if i < going_on else final[order[i]]
            _move(active[start + i], before[start + i], following)
        start = stop
    return active, before, reset


@njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
def _gate(active: Array, before: Array, reset: Array) -> None:
    """Pre-activations of r and z `[3h]` to gates; the state after the reset gate."""
    h = before.shape[0]
    for j in range(2 * h):
        active[j] = sigmoid(active[j])
    for j in range(h):
        reset[j] = active[j] * before[j]


@njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
def _move(active: Array, before: Array, following: Array) -> None:
    """Pre-activation of c to the candidate; the state after the step."""
    h = before.shape[0]
    update, candidate = active[h : 2 * h], active[2 * h :]
    for j in range(h):
        candidate[j] = tanh(candidate[j])
        following[j] = candidate[j] + update[j] * (before[j] - candidate[j])


@njit(cache=True, error_model="numpy", nogil=True)
def gradients(
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
    """Write the gradients of everything, from `grad` `[B, h]`; `active` is used up.

    Args:
        grad: Gradient of `final`.
        items: As in `states`, like those that follow.
        steps: …
        order: …
        input_kernel: …
        gate_kernel: …
        candidate_kernel: …
        active: From `states`; afterwards the gradient of the pre-activations.
        before: From `states`.
        reset: From `states`.
        grad_items: `[P, w]`.
        grad_input_kernel: `[w, 3h]`.
        grad_gate_kernel: `[h, 2h]`.
        grad_candidate_kernel: `[h, h]`.
        grad_bias: `[3h]`.
    """
    P, h = before.shape
    if P == 0:
        grad_input_kernel[:], grad_gate_kernel[:], grad_candidate_kernel[:] = 0, 0, 0
        grad_bias[:] = 0
        return
    first = steps[0]  # items of the first step: no state before them
    back = np.empty((first, h), dtype=np.float32)  # gradient of the running states
    through_reset = np.empty((first, h), dtype=np.float32)
    for i in range(first):
        back[i] = grad[order[i]]
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
            active[:n, :h] = 0  # nothing was reset
        stop = start
    t_product(before[first:], active[first:, : 2 * h], grad_gate_kernel, 0)
    t_product(reset[first:], active[first:, 2 * h :], grad_candidate_kernel, 0)
    t_product(items, active, grad_input_kernel, 0)
    product_t(active, input_kernel, grad_items, 0)
    grad_bias[:] = 0
    for p in range(P):
        grad_bias += active[p]


@njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
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


@njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
def _back_to_gates(back: Array, through_reset: Array, before: Array, active: Array) -> None:
    """The gradient of the pre-activation of r takes its place; `back` gains that of r·h."""
    for j in range(back.shape[0]):
        r, d = active[j], through_reset[j]
        back[j] += d * r
        active[j] = d * before[j] * r * (np.float32(1) - r)
