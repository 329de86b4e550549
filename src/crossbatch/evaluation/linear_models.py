"""Linear recommenders in closed form: EASE, from items to items, and ALS, by factors.

EASE (Steck, 2019): with the users' items as rows of a binary matrix X, B minimises
‖X − X B‖² + λ ‖B‖² with a zero diagonal: P = (XᵀX + λ I)⁻¹, B_ij = −P_ij / P_jj. A history scores
an item by the sum over its items of their weights for it.

ALS (Hu, Koren, Volinsky, 2008), by `implicit`: a user who was not in training is encoded by the
least-squares step of training, items fixed: u = (YᵀCY + λ I)⁻¹ Yᵀ C p, where p is 1 for the
history's items and 0 for all others, and the diagonal confidence C is α for the former and 1 for
the latter.

    weights = item_weights(offsets, items, num_items=ds.num_items, l2=500.0)
    rank_by_weights(weights, histories, 50)     # [B, 50] item ids

    model = factorise(offsets, items, num_items=ds.num_items, factors=128, alpha=40.0, l2=5.0)
    users = model.encode(histories)             # [B, factors], to be multiplied by model.items
"""

from dataclasses import dataclass
from typing import Any

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


def rank_by_weights(
    weights: Tensor, histories: Tensor, k: int, exclude: Tensor | None = None
) -> Tensor:
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


ITERATIONS = 15


@dataclass(frozen=True, slots=True)
class Factors:
    """A factorisation, with what it takes to encode new users."""

    model: Any  # implicit.cpu.als.AlternatingLeastSquares
    num_items: int

    @property
    def items(self) -> Tensor:
        """`[num_items + 1, factors]` item vectors; row 0 is padding."""
        return torch.from_numpy(self.model.item_factors)

    def encode(self, histories: Tensor) -> Tensor:
        """`[B, L]` item ids padded with 0 → `[B, factors]`; a repeated item counts once."""
        ids, offsets = distinct_items(histories, self.num_items)
        shape = (len(histories), self.num_items + 1)
        rows = _binary(ids.numpy(), offsets.numpy(), shape)
        with _one_blas_thread():
            return torch.from_numpy(self.model.recalculate_user(np.arange(len(histories)), rows))


def factorise(
    offsets: Ints,
    items: npt.NDArray[np.integer],
    *,
    num_items: int,
    factors: int,
    alpha: float,
    l2: float,
) -> Factors:
    """Factorise the users' items: user u's are `items[offsets[u]:offsets[u + 1]]`.

    An item that a user has weighs `alpha`, one that the user has not weighs 1; `l2` regularises.
    """
    from implicit.cpu.als import AlternatingLeastSquares

    users, ids = distinct_pairs(offsets, items, num_items)
    ends = np.searchsorted(users, np.arange(len(offsets)))
    with _one_blas_thread():
        model = AlternatingLeastSquares(
            factors=factors,
            alpha=alpha,
            regularization=l2,
            iterations=ITERATIONS,
            random_state=0,
        )
        model.fit(_binary(ids, ends, (len(offsets) - 1, num_items + 1)), show_progress=False)
    return Factors(model, num_items)


def _binary(ids: Ints, offsets: Ints, shape: tuple[int, int]) -> Any:
    """A sparse matrix of ones: row u has the columns `ids[offsets[u]:offsets[u + 1]]`."""
    from scipy.sparse import csr_matrix

    return csr_matrix((np.ones(len(ids), dtype=np.float32), ids, offsets), shape=shape)


def _one_blas_thread() -> Any:
    """`implicit` has threads of its own and warns where the BLAS library adds more."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, "blas")
