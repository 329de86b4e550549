"""Blocks of users who have about as many queries, so that little is spent on places left empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from crossbatch.queries import Queries, weights_of

if TYPE_CHECKING:
    from torch import Tensor


def by_number(interests: Tensor | Queries) -> tuple[Tensor | Queries, Tensor | None]:
    """Users in the order of how many queries they have, these first; and their order, if changed.

    So a block of users has few queries that are none.
    """
    vectors, log_weights = weights_of(interests)
    if log_weights is None:
        return interests, None
    real = log_weights > -torch.inf
    order = real.sum(dim=1).argsort(stable=True)
    if bool(real.all()):
        return interests, None
    places = (~real[order]).byte().argsort(dim=1, stable=True)  # [B, K]
    rows = order.unsqueeze(1)
    return Queries(vectors[rows, places], log_weights[rows, places]), order


def fewest_queries(
    interests: Tensor | Queries, start: int, rows: int, lanes: int
) -> tuple[Tensor | Queries, int]:
    """The next block of users, without places for queries that none of them has; its size.

    Args:
        interests: Of all users, in the order of `by_number`.
        start: The first user of the block.
        rows: Queries of a block, about.
        lanes: Its number of users is a multiple of this one.
    """
    vectors, log_weights = weights_of(interests)
    K = vectors.shape[1]

    def block(queries: int) -> slice:
        return slice(start, start + max(1, rows // (queries * lanes)) * lanes)

    if log_weights is None:
        some = block(K)
        return vectors[some], len(vectors[some])
    counts = (log_weights > -torch.inf).sum(dim=1)
    # In rising order: the last user of the block has most, and with more, the block is shorter.
    some = block(int(counts[block(int(counts[start]))][-1]))
    most = int(counts[some][-1])
    found = Queries(vectors[some, :most], log_weights[some, :most])
    return found, len(found)
