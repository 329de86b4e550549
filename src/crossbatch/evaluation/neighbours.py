"""Item-to-item neighbours from items that users have in common: old baselines, hard to beat.

    neighbours = nearest_items(offsets, items, num_items=ds.num_items)
    neighbours.rank(histories, 50)              # [B, 50] item ids

With n_i the users of item i and n_u the items of user u, the weight of j as a neighbour of i is

    w(i, j) = n_i^−a · Σ_u n_u^−b · n_j^−c,    over the users u with both items.

Cosine of co-occurrence (item-kNN) is a = c = 1/2, b = 0. A random walk of three steps from i to one
of its users to one of that user's items, probabilities raised to the power α and popular items
divided by n_j^β (RP3β; Paudel et al., 2017), is a = b = α, c = β.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossbatch.data.dataset.arrays import range_positions

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# Pairs (item, item of the same user) expanded at once: bounds the working memory at about 80 MB.
PAIRS = 1 << 20


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The nearest items of each item, best first."""

    offsets: Ints  # [num_items + 2]; item i's neighbours are entries offsets[i] … offsets[i + 1]
    item_ids: npt.NDArray[np.int32]
    weights: Floats

    def rank(self, histories: Ints, k: int, *, decay: float = 1.0) -> Ints:
        """Return `[B, k]` item ids by summed weight, ties by id, 0 where none is left.

        Args:
            histories: `[B, L]` item ids, oldest first, padded with 0 on the right.
            k: Length of the lists.
            decay: An item that was followed by n others counts decay^n.
        """
        B = len(histories)
        stride = len(self.offsets)
        longest = int(np.diff(self.offsets).max(initial=0))
        step = max(1, PAIRS // max(1, longest * histories.shape[1]))
        ranked = np.zeros((B, k), dtype=np.int64)
        for start in range(0, B, step):
            part = histories[start : start + step]
            rows, columns = np.nonzero(part)
            items = part[rows, columns]
            newest = np.count_nonzero(part, axis=1) - 1
            strength = decay ** (newest[rows] - columns).astype(np.float64)
            entries, source = expand(self.offsets[items], self.offsets[items + 1])
            keys = rows[source] * stride + self.item_ids[entries]
            keys, scores = _sum_by_key(keys, self.weights[entries] * strength[source])
            users, ids = np.divmod(keys, stride)
            place, order = _place_in_row(users, scores)
            kept = order[place < k]
            ranked[start + users[kept], place[place < k]] = ids[kept]
        return ranked


def nearest_items(
    offsets: Ints,
    items: npt.NDArray[np.integer],
    *,
    num_items: int,
    item_power: float = 0.5,
    user_power: float = 0.0,
    neighbour_power: float = 0.5,
    neighbours: int = 200,
    max_sequence: int = 200,
) -> Neighbours:
    """Find each item's nearest items in training sequences, by default by cosine.

    User u's sequence is `items[offsets[u]:offsets[u + 1]]`, oldest item first. The powers are a, b
    and c of the formula above. Only the latest `max_sequence` items of a user are paired: the cost
    of a user grows with the square of the length, and the longest sequences are seldom real users.
    """
    users, ids = distinct_pairs(offsets, items, num_items, max_sequence)
    by_user = np.searchsorted(users, np.arange(len(offsets)))  # [U + 1] into ids
    lengths = np.diff(by_user)
    frequency = np.bincount(ids, minlength=num_items + 1)
    by_item = np.concatenate([[0], np.cumsum(frequency)])  # [num_items + 2]
    users_of = users[np.argsort(ids, kind="stable")]
    # By length, not by user: the sum of a pair is then over sorted small numbers.
    by_length = np.maximum(np.arange(lengths.max(initial=0) + 1), 1.0) ** -user_power
    popular = np.maximum(frequency, 1.0)
    own, others = popular**-item_power, popular**-neighbour_power
    counts, found, weights = [np.zeros(1, dtype=np.int64)], [], []
    for first, stop in _blocks(by_item, lengths[users_of]):
        partners = users_of[by_item[first] : by_item[stop]]
        entries, source = expand(by_user[partners], by_user[partners + 1])
        row = np.repeat(np.arange(stop - first), frequency[first:stop])[source]
        keys, common = _sum_over_users(
            row * (num_items + 1) + ids[entries], lengths[partners][source], by_length
        )
        row, other = np.divmod(keys, num_items + 1)
        itself = other == row + first
        row, other, common = row[~itself], other[~itself], common[~itself]
        # Squared: with b = 0 and c = 1/2 these are quotients of integers, in which equal ones tie.
        place, order = _place_in_row(row, common**2 * popular[other] ** (-2 * neighbour_power))
        kept = order[place < neighbours]
        row, other, common = row[kept], other[kept], common[kept]
        counts.append(np.bincount(row, minlength=stop - first))
        found.append(other.astype(np.int32))
        weights.append((own[row + first] * common * others[other]).astype(np.float32))
    return Neighbours(
        np.cumsum(np.concatenate(counts)), np.concatenate(found), np.concatenate(weights)
    )


def expand(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return all positions of the ranges [start, end), and the range each belongs to."""
    return range_positions(starts, ends)[0], np.repeat(np.arange(len(starts)), ends - starts)


def distinct_pairs(
    offsets: Ints, items: npt.NDArray[np.integer], num_items: int, max_sequence: int | None = None
) -> tuple[Ints, Ints]:
    """Return (user, item) pairs of the latest items, each once, sorted by user and item."""
    starts = offsets[:-1]
    if max_sequence is not None:
        starts = np.maximum(starts, offsets[1:] - max_sequence)
    entries, users = expand(starts, offsets[1:])
    pairs = np.unique(users * (num_items + 1) + items[entries])
    users, ids = np.divmod(pairs, num_items + 1)
    return users, ids


def distinct_items(histories: Tensor, num_items: int) -> tuple[Tensor, Tensor]:
    """Return the distinct items of padded histories `[B, L]`, end to end, and `[B + 1]` offsets."""
    there = histories > 0
    ends = there.sum(dim=1).cumsum(dim=0).numpy()
    users, ids = distinct_pairs(np.append(0, ends), histories[there].numpy(), num_items)
    offsets = np.searchsorted(users, np.arange(len(histories) + 1))
    return torch.from_numpy(ids), torch.from_numpy(offsets)


def _blocks(by_item: Ints, lengths: Ints) -> Iterator[tuple[int, int]]:
    """Cut the items 0 … num_items into runs of about `PAIRS` pairs, at least one item each."""
    pairs_before = np.concatenate([[0], np.cumsum(lengths)])[by_item]  # [num_items + 2]
    first, last = 0, len(by_item) - 1
    while first < last:
        within = np.searchsorted(pairs_before, pairs_before[first] + PAIRS, side="right") - 1
        stop = int(min(max(within, first + 1), last))
        yield first, stop
        first = stop


def _sum_over_users(
    keys: Ints, lengths: Ints, by_length: npt.NDArray[np.float64]
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Return the distinct keys, ascending, and the sum of `by_length[lengths]` of each.

    Key and length are sorted as one number, which is faster than sorting keys with their values,
    and equal sets of lengths have equal sums to the last digit.
    """
    num_lengths = len(by_length)
    keys, lengths = np.divmod(np.sort(keys * num_lengths + lengths), num_lengths)
    return _sum_runs(keys, by_length[lengths])


def _sum_by_key(
    keys: Ints, values: npt.NDArray[np.floating]
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Return the distinct keys, ascending, and the sum of the values of each."""
    order = np.argsort(keys, kind="stable")
    return _sum_runs(keys[order], values[order].astype(np.float64))


def _sum_runs(keys: Ints, values: npt.NDArray[np.float64]) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Sum the values of equal neighbouring keys."""
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    if not len(starts):
        return keys, np.zeros(0)
    return keys[starts], np.add.reduceat(values, starts)


def _place_in_row(rows: Ints, scores: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Rank entries within their row (rows ascending) by score, ties in the given order.

    Returns:
        The 0-based places, and the entries they belong to: entry `order[n]` has place `place[n]`.
    """
    order = np.lexsort((-scores, rows))
    starts = np.searchsorted(rows, rows)  # rows[order] == rows: the sort stays within rows
    return np.arange(len(rows)) - starts, order
