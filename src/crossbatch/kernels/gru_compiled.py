"""Compiled states of a GRU and their gradients: the inside of `gru_states`.

Step by step a batch of histories is twenty products of small matrices with some ten operations
around each; from Python every one of them costs as much to call as to do. Here all histories that
reach a step are worked on at once, longest first.
"""

from __future__ import annotations

from crossbatch.kernels.compiler import Array, compiled, intrinsic, np

product, product_t = intrinsic("product"), intrinsic("product_t")
sigmoid, tanh = intrinsic("sigmoid"), intrinsic("tanh")
floats_of, part_of = intrinsic("floats_of"), intrinsic("part_of")


@compiled
def step_order(stops: Array, reaching: Array, following: Array, order: Array, source: Array) -> int:
    """How to take histories that end at `stops` `[B]` step by step, the longest first.

    Args:
        stops: Where each history ends.
        reaching: `[P + 1]` zeros; written: how many histories reach each step.
        following: `[P + 1]` memory.
        order: `[≥ B]` written: which they are, longest first.
        source: `[P]` written: for each row of the step-by-step order, its row among the items.

    Returns:
        The number of steps; −1 unless `stops` rise from 0 to P.
    """
    B, P, start, longest = stops.shape[0], source.shape[0], 0, 0
    for b in range(B):
        if stops[b] < start or stops[b] > P:
            return -1
        for t in range(stops[b] - start):
            reaching[t] += 1
        longest = max(longest, stops[b] - start)
        start = stops[b]
    if start != P:
        return -1
    for t in range(longest):  # the place after the last history of t items
        following[t + 1] = reaching[t]
    for b in range(B - 1, -1, -1):
        stop, start = start, 0
        if b > 0:
            start = stops[b - 1]
        size = stop - start
        if size > 0:
            following[size] -= 1
            order[following[size]] = b
    place = 0
    for t in range(longest):
        for i in range(reaching[t]):
            start = 0
            if order[i] > 0:
                start = stops[order[i] - 1]
            source[place] = start + t
            place += 1
    return longest


@compiled
def states(
    active: Array,
    steps: Array,
    order: Array,
    gate_kernel: Array,
    candidate_kernel: Array,
    before: Array,
    reset: Array,
    final: Array,
) -> None:
    """Write the state after the last item of each history to `final` `[B, h]`.

    `active` `[P, 3h]` is what the items give to the pre-activations of r, z, c, bias included, step
    by step; it becomes the activations. Histories `order` come longest first, and `steps` of them
    reach each step. The kernels are those of `gru_states`.

    Written besides, for `gradients`: states before each step `[P, h]`, of which those of the first
    one are given, and the same after the reset gate `[P, h]`.
    """
    h, start = candidate_kernel.shape[0], 0
    for t in range(steps.shape[0]):
        n, continuing = steps[t], 0
        if t + 1 < steps.shape[0]:
            continuing = steps[t + 1]
        if t > 0:  # before, states are zero: the products are too
            gates = part_of(active, start, 0, n, 2 * h)
            product(part_of(before, start, 0, n, h), gate_kernel, gates, 1)
        for i in range(start, start + n):
            _gate(active[i], before[i], reset[i])
        if t > 0:
            candidates = part_of(active, start, 2 * h, n, h)
            product(part_of(reset, start, 0, n, h), candidate_kernel, candidates, 1)
        for i in range(n):
            following = final[order[i]]
            if i < continuing:
                following = before[start + n + i]
            _move(active[start + i], before[start + i], following)
        start += n


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
    update, candidate = floats_of(active, h, h), floats_of(active, 2 * h, h)
    for j in range(h):
        candidate[j] = tanh(candidate[j])
        following[j] = candidate[j] + update[j] * (before[j] - candidate[j])


@compiled
def gradients(
    back: Array,
    steps: Array,
    gate_kernel: Array,
    candidate_kernel: Array,
    active: Array,
    before: Array,
    through_reset: Array,
) -> None:
    """Turn the activations into the gradients of the pre-activations, in place.

    `back` is the gradient of the final states in the order of `states`, and used up; `active` and
    `before` are from there. `through_reset` is memory for as much as `back`.
    """
    stop, h = before.shape
    for t in range(steps.shape[0] - 1, -1, -1):
        n = steps[t]
        start = stop - n
        for i in range(n):
            _back_to_candidate(back[i], before[start + i], active[start + i])
        if t > 0:
            candidates = part_of(active, start, 2 * h, n, h)
            product_t(candidates, candidate_kernel, part_of(through_reset, 0, 0, n, h), 0)
            for i in range(n):
                _back_to_gates(back[i], through_reset[i], before[start + i], active[start + i])
            gates = part_of(active, start, 0, n, 2 * h)
            product_t(gates, gate_kernel, part_of(back, 0, 0, n, h), 1)
        stop = start


@compiled
def _back_to_candidate(back: Array, before: Array, active: Array) -> None:
    """Gradients of the pre-activations of z and c take their places; `back` is of z·h alone."""
    h = back.shape[0]
    one = np.float32(1)
    update, candidate = floats_of(active, h, h), floats_of(active, 2 * h, h)
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
