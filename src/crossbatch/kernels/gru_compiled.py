"""Compiled states of a GRU and their gradients: the inside of `gru_states`.

Step by step a batch of histories is twenty products of small matrices with some ten operations
around each; from Python every one of them costs as much to call as to do. Here all histories that
reach a step are worked on at once, longest first.
"""

from __future__ import annotations

from typing import Any

from crossbatch.kernels.compiler import Array, compiled, intrinsic, np

product, product_t = intrinsic("product"), intrinsic("product_t")
copy, sigmoid, tanh = intrinsic("copy"), intrinsic("sigmoid"), intrinsic("tanh")


@compiled
def step_order(stops: Array, P: int) -> Any:
    """How to take histories that end at `stops` step by step, the longest first.

    Returns how many histories reach each step; which they are, longest first; and for each row of
    the step-by-step order, its row among the histories' items `[P]`.
    """
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
def pack(rows: Array, source: Array, packed: Array) -> None:
    """Copy rows into the step-by-step order."""
    for p in range(source.shape[0]):
        copy(rows[source[p]], packed[p])


@compiled
def unpack(packed: Array, source: Array, rows: Array) -> None:
    """Copy rows back from the step-by-step order."""
    for p in range(source.shape[0]):
        copy(packed[p], rows[source[p]])


@compiled
def states(
    active: Array,
    steps: Array,
    order: Array,
    gate_kernel: Array,
    candidate_kernel: Array,
    final: Array,
) -> Any:
    """Write the state after the last item of each history to `final` `[B, h]`.

    `active` `[P, 3h]` is what the items give to the pre-activations of r, z, c, bias included, in
    the order of `step_order`, which also gives `steps` and `order`; it becomes the activations. The
    kernels are those of `gru_states`.

    Returns what `gradients` needs besides: states before each step `[P, h]`, and the same after the
    reset gate `[P, h]`.
    """
    P, h = active.shape[0], candidate_kernel.shape[0]
    before = np.empty((P, h), dtype=np.float32)
    reset = np.empty((P, h), dtype=np.float32)
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
    return before, reset


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
def gradients(
    grad: Array,
    steps: Array,
    order: Array,
    gate_kernel: Array,
    candidate_kernel: Array,
    active: Array,
    before: Array,
) -> None:
    """Turn the activations into the gradients of the pre-activations, in place.

    `grad` `[B, h]` is the gradient of the final states, `active` and `before` are from `states`.
    """
    P, h = before.shape
    if P == 0:
        return
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
