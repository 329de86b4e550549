"""Rows with several positives as pairs of a user and an item, and the losses of pairs as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossbatch.queries import Queries

if TYPE_CHECKING:
    from crossbatch.negatives.gathering import Gathered

PADDING = -1  # the id of no positive


class Pairs:
    """One pair for each positive of each row.

    Args:
        items: Vectors of the positives, `[B, d]`, or `[B, P, d]` for up to P of each row.
        item_ids: Their ids, `[B]` or `[B, P]` with −1 for none.

    Attributes:
        items: `[n, d]`.
        item_ids: `[n]`.
        several: Whether rows may have several positives.
    """

    def __init__(self, items: Tensor, item_ids: Tensor) -> None:
        tensors = isinstance(items, Tensor) and isinstance(item_ids, Tensor)
        self.several = tensors and items.dim() == 3 and item_ids.dim() == 2
        self.items, self.item_ids, self._own_ids = items, item_ids, item_ids
        if not self.several:
            return
        if items.shape[:-1] != item_ids.shape:
            raise ValueError(
                "items must have shape [B, P, d] where item_ids have shape [B, P], got "
                f"{list(items.shape)} and {list(item_ids.shape)}"
            )
        present = item_ids != PADDING
        self._per_row = present.sum(dim=1)
        if not bool((self._per_row > 0).all()):
            raise ValueError(
                f"row {int((self._per_row == 0).nonzero()[0])} has no positive, for all its "
                "item_ids are -1; leave the row out of the batch"
            )
        where = present.flatten().nonzero().squeeze(1)  # [n]
        self._rows = where // item_ids.shape[1]
        self.items = items.flatten(0, 1).index_select(0, where)
        self.item_ids = item_ids.flatten()[where]

    def users(self, users: Tensor | Queries) -> Tensor | Queries:
        """Users of the rows `[B, …]` as users of the pairs."""
        if not self.several:
            return users
        if isinstance(users, Queries):
            return Queries(users.vectors[self._rows], users.log_weights[self._rows])
        return users.index_select(0, self._rows)

    def of_rows(self, mask: Tensor | None) -> Tensor | None:
        """A mask `[B, …]` of the rows as one of the pairs."""
        return mask[self._rows] if self.several and mask is not None else mask

    def known(self, known_positives: Tensor | None) -> Tensor | None:
        """Ids of what each pair's user likes: its other positives too.  `[n, …]`."""
        if not self.several:
            return known_positives
        parts = [self._own_ids] if known_positives is None else [self._own_ids, known_positives]
        return torch.cat(parts, dim=1)[self._rows]

    def losses(self, losses: Tensor) -> Tensor:
        """Losses of the pairs `[n]` as those of the rows `[B]`: means over a row's positives."""
        if not self.several:
            return losses
        sums = losses.new_zeros(len(self._per_row)).index_add(0, self._rows, losses)
        return sums / self._per_row


def weighted(
    losses: Tensor, weights: Tensor | None, reduction: str, gathered: Gathered | None
) -> Tensor:
    """Losses of rows `[B]`, weighted and reduced.

    The mean is Σ w·loss / Σ w. Of several processes it is such that the mean over the processes is
    that of all rows: DistributedDataParallel, which averages gradients, gives that of the whole.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if weights is None:
        weights = torch.ones_like(losses)
    elif weights.shape != losses.shape or not weights.is_floating_point():
        raise ValueError(
            f"weights must be floating point of shape {list(losses.shape)}, one for each row, got "
            f"{weights.dtype} of shape {list(weights.shape)}"
        )
    elif bool((weights < 0).any()) or not bool(torch.isfinite(weights).all()):
        raise ValueError("weights must be finite and not negative")
    if reduction == "none":
        return weights * losses
    total = (weights * losses).sum()
    if reduction == "sum":
        return total
    whole = weights.sum() if gathered is None else gathered.sum(weights.sum())
    if not bool(whole > 0):
        raise ValueError("weights are all 0; skip the batch")
    return total / whole * (1 if gathered is None else gathered.size)
