"""Compiled attention inside histories and its gradients: the inside of `attention`.

The weights of one history after the other stay in the first-level cache. Padded to one length they
would be many times as many numbers, and be written and read by every operation.
"""

from __future__ import annotations

from typing import Any

from crossbatch.kernels.compiler import Array, compiled, compiled_reordered, intrinsic, np
from crossbatch.kernels.dropout import BITS, kept
from crossbatch.kernels.softmax_compiled import LOWEST, exponentials, ordered

product, product_t = intrinsic("product"), intrinsic("product_t")
t_product = intrinsic("t_product")
bits_as_float, float_as_bits = intrinsic("bits_as_float"), intrinsic("float_as_bits")


@compiled
def attend(
    queries: Array,
    items: Array,
    stops: Array,
    first: int,
    last: int,
    heads: int,
    longest: int,
    places: Array,
    noise: Array,
    weights: Array,
    found: Array,
) -> None:
    """Write what the queries of the histories `first` to `last` see.

    Args:
        queries: `[Q, ≥ d]`, whose first d columns are the queries: one of every item, or one of
            every history where these are not the items themselves.
        items: `[P, ≥ 2d]`, whose last 2d columns are keys and values.
        stops: `[B]` where each history ends.
        first: Number of the first history.
        last: Number after the last one.
        heads: Parts of each vector.
        longest: Items of the longest history.
        places: `[B]` where the weights of each history begin.
        noise: See `_keep`.
        weights: Written for `gradients`: of each history `[heads, its queries, its items]`.
        found: `[Q, d]`.
    """
    d, w = found.shape[1], items.shape[1]
    h, alone = d // heads, w == 2 * d
    scale = np.float32(1 / np.sqrt(h))
    room = np.empty(longest * (1 if alone else longest), dtype=np.float32)
    for b in range(first, last):
        start, stop, place = 0 if b == 0 else stops[b - 1], stops[b], places[b]
        n = stop - start
        top, end = (b, b + 1) if alone else (start, stop)
        if n == 0:
            for row in range(top, end):
                for j in range(d):
                    found[row, j] = 0
            continue
        size = (end - top) * n
        for k in range(heads):
            key, value = w - 2 * d + k * h, w - d + k * h
            q = queries[top:end, k * h : k * h + h]
            some, used = weights[place : place + size], room[:size]
            product_t(q, items[start:stop, key : key + h], some.reshape(end - top, n), 0)
            _softmax(some.reshape(end - top, n), scale)
            _keep(used, some, place, noise)
            seen = items[start:stop, value : value + h]
            product(used.reshape(end - top, n), seen, found[top:end, k * h : k * h + h], 0)
            place += size


@compiled_reordered
def _softmax(scores: Array, scale: Any) -> None:
    """Scores `[q, n]` become weights; the last query sees all n items, each before it one less."""
    q, n = scores.shape
    for i in range(q):
        seen = n - q + i + 1
        row, highest = scores[i], np.int32(LOWEST)
        for j in range(seen):
            highest = max(highest, ordered(float_as_bits(row[j])))
        peak = bits_as_float(ordered(highest))
        for j in range(seen):
            row[j] = scale * (row[j] - peak)
        for j in range(seen, n):
            row[j] = -np.inf
    exponentials(scores.reshape(q * n), np.float32(0))  # short loops would hardly be vectorised
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
    heads: int,
    longest: int,
    places: Array,
    noise: Array,
    weights: Array,
    first: int,
    last: int,
    of_queries: Array,
    of_items: Array,
) -> None:
    """Write the gradients of queries, keys and values into the places that these have.

    `grad` `[Q, d]` is the gradient of `found`; the other arguments are those of `attend`.
    """
    d, w = grad.shape[1], items.shape[1]
    h, alone = d // heads, w == 2 * d
    scale = np.float32(1 / np.sqrt(h))
    rooms = np.empty((2, longest * (1 if alone else longest)), dtype=np.float32)
    for b in range(first, last):
        start, stop, place = 0 if b == 0 else stops[b - 1], stops[b], places[b]
        n = stop - start
        top, end = (b, b + 1) if alone else (start, stop)
        if n == 0:
            continue
        q, size = end - top, (end - top) * n
        used, back = rooms[0, :size].reshape(q, n), rooms[1, :size].reshape(q, n)
        for k in range(heads):
            key, value = w - 2 * d + k * h, w - d + k * h
            g, asking = grad[top:end, k * h : k * h + h], queries[top:end, k * h : k * h + h]
            some = weights[place : place + size]
            _keep(rooms[0, :size], some, place, noise)
            t_product(used, g, of_items[start:stop, value : value + h], 0)
            product_t(g, items[start:stop, value : value + h], back, 0)
            _back_through_softmax(back, used, some.reshape(q, n), scale)
            product(
                back, items[start:stop, key : key + h], of_queries[top:end, k * h : k * h + h], 0
            )
            t_product(back, asking, of_items[start:stop, key : key + h], 0)
            place += size


@compiled_reordered
def _back_through_softmax(back: Array, used: Array, weights: Array, scale: Any) -> None:
    """Gradients `[q, n]` of weights after dropout (`used`) become those of the scores."""
    for i in range(back.shape[0]):
        g, after, before, mean = back[i], used[i], weights[i], np.float32(0)
        for j in range(g.shape[0]):
            mean += after[j] * g[j]
        for j in range(g.shape[0]):
            g[j] = scale * (after[j] * g[j] - before[j] * mean)
