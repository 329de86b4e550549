"""Final numbers: items by popularity from 1, users shuffled once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossbatch.data.prepare.sequences import Numbering
from crossbatch.data.prepare.splits import user_bounds
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from crossbatch.data.prepare.filtering import Frequent
    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.prepare.staged_log import StagedLog


Recount = Callable[[Numbering], np.ndarray]
"""`recount(numbering)`: how many interactions each user row keeps.  Shape `[num_users]`, int64."""


class Numbered(NamedTuple):
    """Numbers, and the ways back to the codes of the staged log.

    Attributes:
        numbering: From codes to final numbers.
        item_codes: Code of each item 1, 2 …  Shape `[num_items]`.
        user_codes: Code of each user row.  Shape `[num_users]`.
        bounds: Where the valid and the test users begin.
        dropped_cold: Interactions of training users with withheld items.
    """

    numbering: Numbering
    item_codes: np.ndarray
    user_codes: np.ndarray
    bounds: tuple[int, int]
    dropped_cold: int


def recount(log: StagedLog, numbering: Numbering) -> np.ndarray:
    """Return how many interactions each user row keeps.  Shape `[num_users]`, int64."""
    lengths = np.zeros(len(numbering.lengths), dtype=np.int64)
    for chunk in log.chunks():
        users, _, keep = numbering.kept(chunk)
        lengths += np.bincount(users[keep], minlength=len(lengths))
    return lengths


def number(
    frequent: Frequent,
    options: PrepareOptions,
    *,
    rows: int,
    recount: Recount,
    given: np.ndarray | None = None,
) -> Numbered:
    """Number the kept users and items.

    Items are sorted by descending count, equals by first appearance.  Users are shuffled with the
    seed and cut into train, valid and test; a split that the source gives is kept, in its order.

    Args:
        frequent: Which users and items stay, by codes in order of first appearance.
        options: Seed, shares and cold items.
        rows: Interactions before the filters.
        recount: Counts the users' interactions anew where items are withheld.
        given: Split of each user code (0 train, 1 valid, 2 test) if the source gives it.

    Raises:
        DataError: If the filters left nothing.
    """
    kept_items, kept_users = np.flatnonzero(frequent.items), np.flatnonzero(frequent.users)
    if not len(kept_items) or not len(kept_users):
        raise DataError(
            f"no interactions are left of {rows:,}: no user has "
            f"{options.min_user_count} of them with items that have {options.min_item_count}; "
            "lower --min-user-count or --min-item-count"
        )
    popularity = np.argsort(-frequent.item_counts[kept_items], kind="stable")
    item_codes = kept_items[popularity]
    user_codes, bounds = _order_users(kept_users, given, options)
    users = np.full(len(frequent.users), -1, dtype=np.int64)
    users[user_codes] = np.arange(len(user_codes))
    items = np.zeros(len(frequent.items), dtype=np.int32)
    items[item_codes] = np.arange(1, len(item_codes) + 1, dtype=np.int32)
    numbering = Numbering(
        users=users,
        items=items,
        lengths=frequent.user_counts[user_codes],
        withheld=_withheld(len(item_codes), options),
        withheld_before=bounds[0] if options.cold_items else 0,
    )
    if not options.cold_items:
        return Numbered(numbering, item_codes, user_codes, bounds, 0)
    lengths = recount(numbering)
    dropped = int(numbering.lengths.sum() - lengths.sum())
    shorter = replace(numbering, lengths=lengths)
    return Numbered(shorter, item_codes, user_codes, bounds, dropped)


def _order_users(
    kept: np.ndarray, given: np.ndarray | None, options: PrepareOptions
) -> tuple[np.ndarray, tuple[int, int]]:
    if given is None:
        shuffled = np.random.default_rng(options.seed).permutation(kept)
        return shuffled, user_bounds(len(kept), (options.valid_share, options.test_share))
    splits = given[kept]
    ordered = kept[np.argsort(splits, kind="stable")]
    return ordered, (int((splits == 0).sum()), int((splits <= 1).sum()))


def _withheld(num_items: int, options: PrepareOptions) -> np.ndarray:
    withheld = np.zeros(num_items + 1, dtype=bool)
    if options.cold_items:
        # a stream of its own: the choice does not depend on how many users there are
        rng = np.random.default_rng([options.seed, 1])
        size = round(options.cold_items * num_items)
        withheld[1 + rng.choice(num_items, size=size, replace=False)] = True
    return withheld
