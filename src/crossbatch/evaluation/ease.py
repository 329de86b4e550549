"""EASE: a linear model from items to items, in closed form (Steck, 2019).

With the users' items as rows of a binary matrix X, B minimises ‖X − X B‖² + λ ‖B‖² with a zero
diagonal: P = (XᵀX + λ I)⁻¹, B_ij = −P_ij / P_jj. A history scores an item by the sum over its items
of their weights for it.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossbatch.evaluation.neighbours import Ints, distinct_items, distinct_pairs

USERS = 2_048  # whose rows of X are dense at once
ROWS = 512  # histories whose scores of all items are held at once


def item_weights(
    offsets: Ints, items: npt.NDArray[np.integer], *, num_items: int, l2: float
) -> Tensor:
    """Return B `[num_items, num_items]`, float32; row and column n belong to item n + 1.

    User u's items are `items[offsets[u]:offsets[u + 1]]`; `l2` is the weight λ.
    """
    gram = _gram(offsets, items, num_items)
    gram.diagonal().add_(l2)
    # In place: these matrices are all the memory that the method needs.
    torch.linalg.cholesky(gram, out=gram)
    torch.cholesky_inverse(gram, out=gram)
    return gram.div_(-gram.diagonal().clone()).fill_diagonal_(0.0)


def rank(weights: Tensor, histories: Tensor, k: int, exclude: Tensor | None = None) -> Tensor:
    """Return `[B, k]` item ids by score, ties by id, 0 where none is left.

    `weights` are B, `histories` `[B, L]` item ids padded with 0, of which a repeated one counts
    once, `exclude` `[B, X]` ids to leave out, where 0 means none.
    """
    ranked = torch.zeros(len(histories), k, dtype=torch.long)
    for first in range(0, len(histories), ROWS):
        rows = slice(first, first + ROWS)
        ids, offsets = distinct_items(histories[rows], len(weights))
        scores = torch.nn.functional.embedding_bag(ids - 1, weights, offsets[:-1], mode="sum")
        if exclude is not None:
            banned = exclude[rows]
            users, columns = banned.nonzero(as_tuple=True)
            scores[users, banned[users, columns] - 1] = -torch.inf
        best, order = scores.sort(dim=1, descending=True, stable=True)
        listed = (order + 1).where(best > -torch.inf, 0)[:, :k]
        ranked[rows, : listed.shape[1]] = listed
    return ranked


def _gram(offsets: Ints, items: npt.NDArray[np.integer], num_items: int) -> Tensor:
    """XᵀX `[num_items, num_items]`: how many users have both items."""
    users, ids = (torch.from_numpy(array) for array in distinct_pairs(offsets, items, num_items))
    gram = torch.zeros(num_items, num_items)
    for first in range(0, len(offsets) - 1, USERS):
        part = slice(*torch.searchsorted(users, torch.tensor([first, first + USERS])).tolist())
        own, has = users[part] - first, ids[part] - 1
        rows = torch.zeros(USERS, num_items)
        rows[own, has] = 1.0
        by_item = torch.sparse_coo_tensor(
            torch.stack([has, own]),
            torch.ones(len(own)),
            (num_items, USERS),
            check_invariants=True,
        )
        gram.addmm_(by_item, rows)
    return gram
