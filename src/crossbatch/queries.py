"""`Queries`: a user as several weighted query vectors, which score an item together.

score(u, v) = log Σ_k exp(log_weights_k + vectors_k · v)

A model returns them from `users()`, the losses of `crossbatch.negatives` train them, and the
indexes of `crossbatch.retrieval` search by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Up to K queries of each of B users.

    Attributes:
        vectors: `[B, K, d]`, already divided by the temperature where there is one.
        log_weights: `[B, K]`; −inf where a user has fewer queries.
    """

    vectors: Tensor
    log_weights: Tensor

    def __post_init__(self) -> None:
        if self.vectors.dim() != 3 or not self.vectors.is_floating_point():
            raise ValueError(
                "vectors must be a floating-point tensor of shape [B, K, d], got "
                f"{self.vectors.dtype} of shape {list(self.vectors.shape)}"
            )
        if self.log_weights.shape != self.vectors.shape[:2]:
            raise ValueError(
                f"log_weights must hold one number a query, {list(self.vectors.shape[:2])}, got "
                f"shape {list(self.log_weights.shape)}"
            )

    def __len__(self) -> int:
        return self.vectors.shape[0]

    def scores(self, items: Tensor) -> Tensor:
        """Scores `[B, N]` of item vectors `[N, d]`: the definition, in plain torch."""
        return combined(self.vectors @ items.T, self.log_weights)

    def rows(self, rows: slice | Tensor) -> Queries:
        """The queries of some of the users."""
        return Queries(self.vectors[rows], self.log_weights[rows])

    def detach(self) -> Queries:
        """The same numbers without a graph."""
        return Queries(self.vectors.detach(), self.log_weights.detach())

    def float(self) -> Queries:
        """The same in float32."""
        return Queries(self.vectors.float(), self.log_weights.float())

    def to(self, like: Tensor) -> Queries:
        """The same with the type and the device of another tensor."""
        return Queries(self.vectors.to(like), self.log_weights.to(like))


def weights_of(interests: Tensor | Queries) -> tuple[Tensor, Tensor | None]:
    """The vectors `[B, K, d]` of interests and, of weighted ones, their log-weights `[B, K]`."""
    if isinstance(interests, Queries):
        return interests.vectors, interests.log_weights
    return interests, None


def combined(scores: Tensor, log_weights: Tensor | None) -> Tensor:
    """Scores `[B, N]` of users from those `[B, K, N]` of their interests.

    That is the largest one or, with log-weights `[B, K]`, their weighted log-sum-exp.
    """
    if log_weights is None:
        return scores.amax(dim=1)
    return (scores + log_weights.unsqueeze(2)).logsumexp(dim=1)


def best_interest(interests: Tensor, items: Tensor) -> Tensor:
    """The interest of each row that scores its own item highest (hard label-aware readout).

    Args:
        interests: `[B, K, d]`.
        items: `[B, d]`.

    Returns:
        `[B, d]`; gradient flows into the chosen interest alone.
    """
    if interests.dim() != 3 or items.shape != (interests.shape[0], interests.shape[2]):
        raise ValueError(
            "interests must have shape [B, K, d] and items [B, d], got "
            f"{list(interests.shape)} and {list(items.shape)}"
        )
    with torch.no_grad():
        best = torch.bmm(interests.float(), items.float().unsqueeze(2)).squeeze(2).argmax(dim=1)
    B, K, _ = interests.shape
    # Of the flat rows: the backward pass of one index is several times as fast as that of two.
    return interests.flatten(0, 1).index_select(0, best + K * torch.arange(B, device=best.device))


def feature_rows(model: Any, batch: Any) -> tuple[Tensor, ...]:
    """The rows `[B]` of the features that a model reads of a batch's requests.

    Those of the users and, for a model with `reads_context`, those of the context of the events.
    """
    if getattr(model, "reads_context", False):
        return batch.user_ids, batch.event_ids
    return (batch.user_ids,)


def rows_of(interests: Tensor | Queries, rows: slice | Tensor) -> Tensor | Queries:
    """The interests of some of the users."""
    return interests.rows(rows) if isinstance(interests, Queries) else interests[rows]
