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

exponential = intrinsic("exponential")


def definition(tile: Tensor, of_items: Tensor, of_queries: Tensor, weights: Tensor) -> Tensor:
    """As `coarse_scores`, as torch operations."""
    scores = tile * of_queries * of_items[:, None, None]  # [n, K, B]
    return scores.amax(dim=1) if not len(weights) else (weights * scores.exp()).sum(dim=1)


def coarse_scores(tile: Tensor, of_items: Tensor, of_queries: Tensor, weights: Tensor) -> Tensor:
    """Scores `[n, B]` of n items for B users: the largest of K, or Σ_k weights_k · exp(score_k).

    Args:
        tile: `[n, K, B]` int32 products of vectors that were rounded to integers.
        of_items: `[n]` positive factors of the items' vectors.
        of_queries: `[K, B]` those of the users' vectors.
        weights: `[K, B]`, or `[0, B]` for the largest. No score is above 80 then.
    """
    _check(tile, of_items, of_queries, weights)
    if tile.dtype != torch.int32 or not tile.is_cpu or not usable(of_items, of_queries, weights):
        return definition(tile, of_items, of_queries, weights)
    scores = of_items.new_empty(len(tile), tile.shape[2])
    function = _sums if len(weights) else _largest
    arrays = [array(each) for each in (of_items, of_queries, weights)]
    function(array(tile), *arrays, scores.numpy())
    return scores


def _check(tile: Tensor, of_items: Tensor, of_queries: Tensor, weights: Tensor) -> None:
    """Raise `ValueError` for what the compiled function could not read safely."""
    if tile.dim() != 3 or tile.shape[1] == 0 or tile.is_floating_point():
        raise ValueError(
            f"tile must be [n, K, B] integers with K ≥ 1, got {tile.dtype} {list(tile.shape)}"
        )
    n, K, B = tile.shape
    rows = len(weights) and K
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
def _sums(tile: Array, of_items: Array, of_queries: Array, weights: Array, scores: Array) -> None:
    n, K, B = tile.shape
    for i in range(n):
        out, factor = scores[i], of_items[i]
        for b in range(B):
            out[b] = np.float32(0)
        for k in range(K):
            line, factors, some = tile[i, k], of_queries[k], weights[k]
            for b in range(B):
                score = np.float32(line[b]) * factors[b] * factor
                out[b] += some[b] * exponential(score)
