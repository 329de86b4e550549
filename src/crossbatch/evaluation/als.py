"""Matrix factorisation by alternating least squares (Hu, Koren, Volinsky, 2008), by `implicit`.

    model = factorise(offsets, items, num_items=ds.num_items, factors=128, alpha=40.0, l2=5.0)
    users = model.encode(histories)             # [B, factors], to be multiplied by model.items

A user who was not in training is encoded by the least-squares step of training, items fixed:
u = (YᵀCY + λ I)⁻¹ Yᵀ C p, where p is 1 for the history's items and 0 for all others, and the
diagonal confidence C is α for the former and 1 for the latter.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossbatch.evaluation.neighbours import Ints, distinct_items, distinct_pairs

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
