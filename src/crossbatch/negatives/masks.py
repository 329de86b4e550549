"""Which columns are no negatives of a row: copies of its positive, and the user's other positives.

The set difference of Eqs. 3 and 9 is a comparison of ids, so it covers repeats in the batch,
copies in the bank and columns from other machines alike. A mode of `MASKS` gives every row and
every column a key; a column is left out of the rows whose key it carries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossbatch.kernels.known_columns import known_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.negatives.candidates import Candidates

Keys = tuple[Tensor, Tensor]  # of the rows [B] and of the columns [N]

_NO_KEY = torch.iinfo(torch.int64).min  # key of a column that every row keeps


def same_id(own_ids: Tensor, columns: Candidates) -> Keys:
    """Leave out every column that carries the row's own positive id."""
    return own_ids, columns.item_ids


def same_id_unless_cached(own_ids: Tensor, columns: Candidates) -> Keys:
    """As `same_id`, but copies of the positive in the bank stay negatives."""
    keys = [
        torch.full_like(part.item_ids, _NO_KEY) if part.cached else part.item_ids
        for part in columns.parts
    ]
    return own_ids, torch.cat(keys)


def own_column(own_ids: Tensor, columns: Candidates) -> Keys:
    """Leave out row r's own column alone, of the part that is the batch in the order of the rows.

    It is column r, counted from `first_row` where the batch is shared with other processes.
    """
    B = own_ids.shape[0]
    rows = torch.arange(B, device=own_ids.device)
    keys = []
    for part in columns.parts:
        key = torch.full_like(part.item_ids, _NO_KEY)
        own = slice(part.first_row, part.first_row + B)
        if not part.cached and torch.equal(part.item_ids[own], own_ids):
            key[own] = rows
        keys.append(key)
    return rows, torch.cat(keys)


MASKS: dict[str, Callable[[Tensor, Candidates], Keys]] = {
    "both": same_id,
    "batch": same_id_unless_cached,
    "none": own_column,
}


def known_positives_mask(
    known_ids: Tensor, column_ids: Tensor, offsets: Tensor | None = None
) -> Tensor:
    """Mark the columns that a row's user is known to like.

    Args:
        known_ids: `[B, P]` int64 item ids each user interacted with, padded with -1; or all of
            them end to end, `[n]`, with `offsets`.
        column_ids: `[N]` ids of the candidate columns.
        offsets: `[B + 1]` int64: those of row b are `known_ids[offsets[b]:offsets[b + 1]]`.

    Returns:
        `[B, N]` bool for the `exclude` argument of the loss.
    """
    dim = 2 if offsets is None else 1
    if known_ids.dim() != dim or known_ids.dtype != torch.int64:
        raise ValueError(
            f"known positives must be int64 of shape {'[B, P]' if dim == 2 else '[n]'}, got "
            f"{known_ids.dtype} of shape {list(known_ids.shape)}; pad shorter rows with -1"
        )
    if offsets is None:
        B, P = known_ids.shape
        offsets = P * torch.arange(B + 1, device=known_ids.device)
    return known_columns(known_ids.flatten(), offsets, column_ids)
