"""Which users and items stay, and their final ids.

Minimum counts are ComiRec's single pass, or repeated until nothing changes (a k-core).  Items are
numbered from 1 by popularity, users are shuffled once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from crossbatch.data.prepare.splits import user_bounds
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.prepare.staged_log import LogChunk, StagedLog


@dataclass(frozen=True, slots=True)
class Frequent:
    """Which users and items stay, by code."""

    users: np.ndarray  # [U] bool
    items: np.ndarray  # [I] bool
    item_counts: np.ndarray  # [I], of the last item filter, for the order of popularity
    user_counts: np.ndarray  # [U], of kept users with kept items, else 0
    rows: int  # interactions before the filters
    dropped_by_item: int  # interactions dropped with their item
    dropped_by_user: int  # interactions with kept items dropped with their user
    rounds: int  # how often both filters were applied


def keep_frequent(
    log: StagedLog,
    min_item_count: int,
    min_user_count: int,
    *,
    core: bool,
    known_users: int = 0,
    known_items: int = 0,
) -> Frequent:
    """Apply the minimum counts to a staged log.

    One round counts every item over all interactions and keeps those with `min_item_count`, then
    keeps the users who have `min_user_count` interactions with kept items; items are not counted
    again.  With `core`, rounds are repeated on what is left until nothing changes.  The first
    `known_users` and `known_items` codes stay whatever their counts: they are in a dataset already.
    """
    users = np.ones(len(log.user_codes), dtype=bool)
    items = np.ones(len(log.item_codes), dtype=bool)
    rounds = 0
    while True:
        item_counts = _count(log, users, items, of_items=True)
        kept_items = items & (item_counts >= min_item_count)
        kept_items[:known_items] = True
        user_counts = _count(log, users, kept_items, of_items=False)
        kept_users = users & (user_counts >= min_user_count)
        kept_users[:known_users] = True
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


@dataclass(frozen=True, slots=True)
class Numbering:
    """From the codes of the staged log to final ids, and back."""

    users: np.ndarray  # [U] int64, id of each user code, −1 if dropped
    items: np.ndarray  # [I] int32, id of each item code from 1, 0 if dropped
    user_codes: np.ndarray  # [num_users], code of each user id
    item_codes: np.ndarray  # [num_items], code of each item 1, 2 …
    lengths: np.ndarray  # [num_users] int64, interactions of each user id
    bounds: tuple[int, int]  # where the valid and the test users begin
    withheld: np.ndarray  # [num_items + 1] bool, cold items, which no training user may have

    def kept(self, chunk: LogChunk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return user ids, item ids and the mask of the chunk's kept interactions."""
        users, items = self.users[chunk.users], self.items[chunk.items]
        keep = (users >= 0) & (items > 0)
        if self.withheld.any():
            keep &= ~(self.withheld[items] & (users < self.bounds[0]))
        return users, items, keep


def number_keys(
    frequent: Frequent, options: PrepareOptions, given: np.ndarray | None = None
) -> Numbering:
    """Give ids to the kept users and items; lengths do not know of withheld items yet.

    Items are sorted by descending count, equals by first appearance. Users are shuffled with the
    seed and cut into train, valid and test; a split that the source gives for each user code (0
    train, 1 valid, 2 test) is kept, in its order.
    """
    kept_items, kept_users = np.flatnonzero(frequent.items), np.flatnonzero(frequent.users)
    if not len(kept_items) or not len(kept_users):
        raise DataError(
            f"no interactions are left of {frequent.rows:,}: no user has "
            f"{options.min_user_count} of them with items that have {options.min_item_count}; "
            "lower --min-user-count or --min-item-count"
        )
    item_codes = kept_items[np.argsort(-frequent.item_counts[kept_items], kind="stable")]
    user_codes, bounds = _order_users(kept_users, given, options)
    withheld = _withheld(len(item_codes), options)
    return _numbered(frequent, user_codes, item_codes, bounds, withheld)


def number_further_keys(frequent: Frequent, lengths: np.ndarray, num_items: int) -> Numbering:
    """Give ids to users and items beside those of a dataset, which keep theirs.

    The first codes are the dataset's users, with `lengths` `[num_users]` interactions already, and
    its `num_items` items.  New items follow by descending count, new users by first appearance.
    """
    num_users = len(lengths)
    new_items = num_items + np.flatnonzero(frequent.items[num_items:])
    new_items = new_items[np.argsort(-frequent.item_counts[new_items], kind="stable")]
    item_codes = np.concatenate([np.arange(num_items), new_items])
    new_users = num_users + np.flatnonzero(frequent.users[num_users:])
    user_codes = np.concatenate([np.arange(num_users), new_users])
    everyone = (len(user_codes), len(user_codes))
    nothing = np.zeros(len(item_codes) + 1, dtype=bool)
    numbering = _numbered(frequent, user_codes, item_codes, everyone, nothing)
    numbering.lengths[:num_users] += lengths
    return numbering


def _numbered(
    frequent: Frequent,
    user_codes: np.ndarray,
    item_codes: np.ndarray,
    bounds: tuple[int, int],
    withheld: np.ndarray,
) -> Numbering:
    users = np.full(len(frequent.users), -1, dtype=np.int64)
    users[user_codes] = np.arange(len(user_codes))
    items = np.zeros(len(frequent.items), dtype=np.int32)
    items[item_codes] = np.arange(1, len(item_codes) + 1, dtype=np.int32)
    lengths = frequent.user_counts[user_codes]
    return Numbering(users, items, user_codes, item_codes, lengths, bounds, withheld)


def with_counted_lengths(numbering: Numbering, log: StagedLog) -> Numbering:
    """Count the interactions of each user in the log, without withheld items."""
    lengths = np.zeros(len(numbering.lengths), dtype=np.int64)
    for chunk in log.chunks():
        users, _, keep = numbering.kept(chunk)
        lengths += np.bincount(users[keep], minlength=len(lengths))
    return replace(numbering, lengths=lengths)


def _order_users(
    kept: np.ndarray, given: np.ndarray | None, options: PrepareOptions
) -> tuple[np.ndarray, tuple[int, int]]:
    if given is None:
        shuffled = np.random.default_rng(options.seed).permutation(kept)
        return shuffled, user_bounds(len(kept), (options.valid_share, options.test_share))
    if options.shards is not None:  # neighbours must be a fair sample
        kept = np.random.default_rng(options.seed).permutation(kept)
    splits = given[kept]
    ordered = kept[np.argsort(splits, kind="stable")]
    return ordered, (int((splits == 0).sum()), int((splits <= 1).sum()))


def _withheld(num_items: int, options: PrepareOptions) -> np.ndarray:
    withheld = np.zeros(num_items + 1, dtype=bool)
    if options.cold_items:
        # a random stream of its own: the choice does not depend on the number of users
        rng = np.random.default_rng([options.seed, 1])
        size = round(options.cold_items * num_items)
        withheld[1 + rng.choice(num_items, size=size, replace=False)] = True
    return withheld
