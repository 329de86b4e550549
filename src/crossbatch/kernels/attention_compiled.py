"""Compiled attention inside histories and its gradients: the inside of `attention`.

The weights of one history after the other stay in the first-level cache. Padded to one length they
would be many times as many numbers, and be written and read by every operation.
"""

from __future__ import annotations

from typing import Any

from crossbatch.kernels.compiler import Array, compiled, compiled_reordered, intrinsic, np
from crossbatch.kernels.dropout import BITS, kept
from crossbatch.kernels.softmax_compiled import LOWEST, exponentials

product, product_t = intrinsic("product"), intrinsic("product_t")
t_product, rank, of_rank = intrinsic("t_product"), intrinsic("rank"), intrinsic("of_rank")
floats_of, matrix_of, part_of = intrinsic("floats_of"), intrinsic("matrix_of"), intrinsic("part_of")


@compiled
def attend(
    queries: Array,
    items: Array,
    stops: Array,
    first: int,
    last: int,
    start: int,
    heads: int,
    places: Array,
    noise: Array,
    weights: Array,
    room: Array,
    found: Array,
) -> None:
    """Write what the queries of the histories `first` to `last` see, where there are items.

    Args:
        queries: `[Q, ≥ d]`, whose first d columns are the queries: one of every item, or one of
            every history where these are not the items themselves.
        items: `[P, ≥ 2d]`, whose last 2d columns are keys and values.
        stops: `[B]` where each history ends.
        first: Number of the first history.
        last: Number after the last one.
        start: Where the first history begins.
        heads: Parts of each vector.
        places: `[B]` where the weights of each history begin.
        noise: See `_keep`.
        weights: Written for `gradients`: of each history `[heads, its queries, its items]`.
        room: Memory for the weights of a head of the longest history.
        found: `[Q, d]`.
    """
    d, w = found.shape[1], items.shape[1]
    h, keys = d // heads, w - 2 * d
    scale = np.float32(1 / np.sqrt(h))
    for b in range(first, last):
        n, place, top, q = stops[b] - start, places[b], start, stops[b] - start
        if keys == 0:  # queries of their own
            top, q = b, 1
        if n > 0:
            used = matrix_of(room, 0, q, n)
            for left in range(0, d, h):
                scores = matrix_of(weights, place, q, n)
                asking, key = part_of(queries, top, left, q, h), keys + left
                product_t(asking, part_of(items, start, key, n, h), scores, 0)
                flat = floats_of(weights, place, q * n)
                _softmax(scores, flat, scale)
                _keep(room, flat, place, noise)
                value = part_of(items, start, key + d, n, h)
                product(used, value, part_of(found, top, left, q, h), 0)
                place += q * n
        start += n


@compiled_reordered
def _softmax(scores: Array, flat: Array, scale: Any) -> None:
    """Scores `[q, n]` become weights; the last query sees all n items, each before it one less.

    `flat` are the same numbers in one row: short loops would hardly be vectorised.
    """
    q, n = scores.shape
    for i in range(q):
        seen, row, highest = n - q + i + 1, scores[i], np.int32(LOWEST)
        for j in range(seen):
            place = rank(row[j])
            if place > highest:
                highest = place
        peak = of_rank(highest)
        for j in range(seen):
            row[j] = scale * (row[j] - peak)
        for j in range(seen, n):
            row[j] = -np.inf
    exponentials(flat, np.float32(0))
    for i in range(q):
        row, total = scores[i], np.float32(0)
        for j in range(n):
            total += row[j]
        share = np.float32(1) / total
        for j in range(n):
            row[j] *= share


@compiled
def _keep(target: Array, weights: Array, place: int, noise: Array) -> None:
    """Write the weights after dropout; the first has the number `place`.

    `noise` `[3]` is the threshold of `kept`, 0 for no dropout, and the seed.
    """
    least, seed, other_seed = noise[0], noise[1], noise[2]
    factor = np.float32(1 / (1 - least / 2**BITS))
    for j in range(weights.shape[0]):
        stays = kept(np.uint32(place + j), least, seed, other_seed)
        target[j] = weights[j] * factor if stays else np.float32(0)


@compiled
def gradients(
    grad: Array,
    queries: Array,
    items: Array,
    stops: Array,
    first: int,
    last: int,
    start: int,
    heads: int,
    places: Array,
    noise: Array,
    weights: Array,
    rooms: Array,
    of_queries: Array,
    of_items: Array,
) -> None:
    """Write the gradients of queries, keys and values into the places that these have.

    `grad` `[Q, d]` is the gradient of `found`, `rooms` `[2, …]` has two of `room`; the other
    arguments are those of `attend`.
    """
    d, w = grad.shape[1], items.shape[1]
    h, keys = d // heads, w - 2 * d
    scale = np.float32(1 / np.sqrt(h))
    for b in range(first, last):
        n, place, top, q = stops[b] - start, places[b], start, stops[b] - start
        if keys == 0:  # queries of their own
            top, q = b, 1
        if n > 0:
            used, back = matrix_of(rooms[0], 0, q, n), matrix_of(rooms[1], 0, q, n)
            for left in range(0, d, h):
                key, g = keys + left, part_of(grad, top, left, q, h)
                some = floats_of(weights, place, q * n)
                _keep(rooms[0], some, place, noise)
                t_product(used, g, part_of(of_items, start, key + d, n, h), 0)
                product_t(g, part_of(items, start, key + d, n, h), back, 0)
                _back_through_softmax(back, used, matrix_of(weights, place, q, n), scale)
                asked = part_of(of_queries, top, left, q, h)
                product(back, part_of(items, start, key, n, h), asked, 0)
                asking = part_of(queries, top, left, q, h)
                t_product(back, asking, part_of(of_items, start, key, n, h), 0)
                place += q * n
        start += n


@compiled_reordered
def _back_through_softmax(back: Array, used: Array, weights: Array, scale: Any) -> None:
    """Gradients `[q, n]` of weights after dropout (`used`) become those of the scores."""
    for i in range(back.shape[0]):
        g, after, before, mean = back[i], used[i], weights[i], np.float32(0)
        for j in range(g.shape[0]):
            mean += after[j] * g[j]
        for j in range(g.shape[0]):
            g[j] = scale * (after[j] * g[j] - before[j] * mean)
