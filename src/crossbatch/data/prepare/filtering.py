"""Minimum counts: ComiRec's single pass, or repeated until nothing changes (a k-core)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from crossbatch.data.prepare.staged_log import StagedLog


@dataclass(frozen=True, slots=True)
class Frequent:
    """Which users and items stay.

    Attributes:
        users: Kept users by code.  Shape `[U]`, bool.
        items: Kept items by code.  Shape `[I]`, bool.
        item_counts: Counts of the last item filter, for the order of popularity.  Shape `[I]`.
        user_counts: Interactions of each kept user with kept items, else 0.  Shape `[U]`.
        rows: Interactions before the filters.
        dropped_by_item: Interactions dropped with their item.
        dropped_by_user: Interactions with kept items dropped with their user.
        rounds: How often both filters were applied.
    """

    users: np.ndarray
    items: np.ndarray
    item_counts: np.ndarray
    user_counts: np.ndarray
    rows: int
    dropped_by_item: int
    dropped_by_user: int
    rounds: int


def keep_frequent(
    log: StagedLog, min_item_count: int, min_user_count: int, *, core: bool
) -> Frequent:
    """Apply the minimum counts to a staged log.

    One round counts every item over all interactions and keeps those with `min_item_count`, then
    keeps the users who have `min_user_count` interactions with kept items; items are not counted
    again.  With `core`, rounds are repeated on what is left until nothing changes.
    """
    users = np.ones(len(log.user_codes), dtype=bool)
    items = np.ones(len(log.item_codes), dtype=bool)
    rounds = 0
    while True:
        item_counts = _count(log, users, items, of_items=True)
        kept_items = items & (item_counts >= min_item_count)
        user_counts = _count(log, users, kept_items, of_items=False)
        kept_users = users & (user_counts >= min_user_count)
        settled = np.array_equal(kept_items, items) and np.array_equal(kept_users, users)
        users, items, rounds = kept_users, kept_items, rounds + 1
        if not core or settled:
            break
    # after a single round the users were counted over kept items already, dropped ones included
    everyone = np.ones_like(users)
    with_kept_items = user_counts if rounds == 1 else _count(log, everyone, items, of_items=False)
    return Frequent(
        users=users,
        items=items,
        item_counts=item_counts,
        user_counts=np.where(users, user_counts, 0),
        rows=log.rows,
        dropped_by_item=log.rows - int(with_kept_items.sum()),
        dropped_by_user=int(with_kept_items[~users].sum()),
        rounds=rounds,
    )


def _count(log: StagedLog, users: np.ndarray, items: np.ndarray, *, of_items: bool) -> np.ndarray:
    """Count the interactions of kept users with kept items, per item or per user.  int64."""
    if users.all() and items.all():
        return log.item_counts if of_items else log.user_counts
    counts = np.zeros(len(items) if of_items else len(users), dtype=np.int64)
    for chunk in log.chunks():
        codes = chunk.items if of_items else chunk.users
        kept = users[chunk.users] & items[chunk.items]
        counts += np.bincount(codes[kept], minlength=len(counts))
    return counts
