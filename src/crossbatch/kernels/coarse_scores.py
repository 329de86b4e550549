"""Scores of users from integer products of their queries: one pass over a tile in the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    Array,
    array,
    check_shapes,
    compiled,
    intrinsic,
    np,
    usable,
)

MARGIN = 1e-4  # of a logarithm, for the rounding of sums and exponentials

exponential = intrinsic("exponential")


def definition(
    tile: Tensor,
    of_items: Tensor,
    of_queries: Tensor,
    weights: Tensor,
    floor: Tensor | None = None,
) -> Tensor:
    """As `coarse_scores`, as torch operations, whatever the floor."""
    del floor
    scores = tile * of_queries * of_items[:, None, None]  # [n, K, B]
    return scores.amax(dim=1) if not len(weights) else (weights * scores.exp()).sum(dim=1)


def coarse_scores(
    tile: Tensor,
    of_items: Tensor,
    of_queries: Tensor,
    weights: Tensor,
    floor: Tensor | None = None,
) -> Tensor:
    """Scores `[n, B]` of n items for B users: the largest of K, or Σ_k weights_k · exp(score_k).

    Args:
        tile: `[n, K, B]` int32 products of vectors that were rounded to integers.
        of_items: `[n]` positive factors of the items' vectors.
        of_queries: `[K, B]` those of the users' vectors.
        weights: `[K, B]`, or `[0, B]` for the largest. No score is above 80 then.
        floor: `[B]`; a sum that is not above it may be returned as 0.
    """
    _check(tile, of_items, of_queries, weights, floor)
    if tile.dtype != torch.int32 or not tile.is_cpu or not usable(of_items, of_queries, weights):
        return definition(tile, of_items, of_queries, weights)
    scores = of_items.new_empty(len(tile), tile.shape[2])
    arrays = [array(each) for each in (of_items, of_queries, weights)]
    if not len(weights):
        _largest(array(tile), *arrays, scores.numpy())
        return scores
    # Σ w e^s is at most Σ w times the exponential of the largest score.
    limit = of_items.new_full((tile.shape[2],), -torch.inf)
    if floor is not None:
        limit = torch.log(floor.clamp_min(0.0) / weights.sum(dim=0)).sub_(MARGIN)
        limit = limit.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    _sums(array(tile), *arrays, array(limit), scores.numpy())
    return scores


def _check(
    tile: Tensor, of_items: Tensor, of_queries: Tensor, weights: Tensor, floor: Tensor | None
) -> None:
    """Raise `ValueError` for what the compiled function could not read safely."""
    if tile.dim() != 3 or tile.shape[1] == 0 or tile.is_floating_point():
        raise ValueError(
            f"tile must be [n, K, B] integers with K ≥ 1, got {tile.dtype} {list(tile.shape)}"
        )
    n, K, B = tile.shape
    rows = len(weights) and K
    if floor is not None:
        check_shapes(floor=(floor, (B,)))
    check_shapes(
        of_items=(of_items, (n,)), of_queries=(of_queries, (K, B)), weights=(weights, (rows, B))
    )


@compiled
def _largest(
    tile: Array, of_items: Array, of_queries: Array, weights: Array, scores: Array
) -> None:
    n, K, B = tile.shape
    for i in range(n):
        out, factor = scores[i], of_items[i]
        for k in range(K):
            line, factors = tile[i, k], of_queries[k]
            if k == 0:
                for b in range(B):
                    out[b] = np.float32(line[b]) * factors[b] * factor
            else:
                for b in range(B):
                    score = np.float32(line[b]) * factors[b] * factor
                    out[b] = score if score > out[b] else out[b]


@compiled
def _sums(
    tile: Array,
    of_items: Array,
    of_queries: Array,
    weights: Array,
    limit: Array,
    scores: Array,
) -> None:
    """As `definition`; zeros for an item whose largest score is above no user's `limit` `[B]`."""
    n, K, B = tile.shape
    for i in range(n):
        out, factor, above = scores[i], of_items[i], 0
        for k in range(K):
            line, factors = tile[i, k], of_queries[k]
            if k == 0:
                for b in range(B):
                    out[b] = np.float32(line[b]) * factors[b]
            else:
                for b in range(B):
                    score = np.float32(line[b]) * factors[b]
                    out[b] = score if score > out[b] else out[b]
        for b in range(B):
            above += out[b] * factor > limit[b]
            out[b] = np.float32(0)
        for k in range(K if above > 0 else 0):
            line, factors, some = tile[i, k], of_queries[k], weights[k]
            for b in range(B):
                score = np.float32(line[b]) * factors[b] * factor
                out[b] += some[b] * exponential(score)
