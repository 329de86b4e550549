"""Which columns are no negatives of a row: copies of its positive, and the user's other positives.

The set difference of Eqs. 3 and 9 is a comparison of ids, so it covers repeats in the batch,
copies in the bank and columns from other machines alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.negatives.candidates import Candidates


def same_id(own_ids: Tensor, part: Candidates) -> Tensor:
    """`[B, n]` True where a column carries the row's own positive id."""
    return own_ids.unsqueeze(1) == part.item_ids


def same_id_unless_cached(own_ids: Tensor, part: Candidates) -> Tensor | None:
    """As `same_id`, but copies of the positive in the bank stay negatives."""
    return None if part.cached else same_id(own_ids, part)


def own_column(own_ids: Tensor, part: Candidates) -> Tensor | None:
    """`[B, n]` True on the diagonal if the part is the batch itself, in the order of the rows."""
    if part.cached or not torch.equal(part.item_ids[: own_ids.shape[0]], own_ids):
        return None
    return torch.eye(own_ids.shape[0], len(part), dtype=torch.bool, device=own_ids.device)


MASKS: dict[str, Callable[[Tensor, Candidates], Tensor | None]] = {
    "both": same_id,
    "batch": same_id_unless_cached,
    "none": own_column,
}


def known_positives_mask(known_ids: Tensor, column_ids: Tensor) -> Tensor:
    """Mark the columns that a row's user is known to like.

    A sorted join: no `[B, N, P]` tensor is made.

    Args:
        known_ids: `[B, P]` item ids each user interacted with; pad with -1.
        column_ids: `[N]` ids of the candidate columns.

    Returns:
        `[B, N]` bool for the `exclude` argument of the loss.
    """
    B, N = known_ids.shape[0], column_ids.shape[0]
    sorted_ids, order = column_ids.sort()
    first = torch.searchsorted(sorted_ids, known_ids)  # [B, P]
    copies = torch.searchsorted(sorted_ids, known_ids, right=True) - first
    copies = copies.masked_fill(known_ids < 0, 0).flatten()
    row = torch.arange(B, device=known_ids.device).repeat_interleave(known_ids.shape[1])
    rows = row.repeat_interleave(copies)
    # Position of each match: the start of its run plus its rank within the run.
    run_start = first.flatten().repeat_interleave(copies)
    rank = torch.arange(rows.shape[0], device=rows.device)
    rank = rank - (copies.cumsum(0) - copies).repeat_interleave(copies)
    mask = torch.zeros(B, N, dtype=torch.bool, device=known_ids.device)
    mask[rows, order[run_start + rank]] = True
    return mask
