"""Item-to-item neighbours by cosine of co-occurrence: an old baseline that is hard to beat.

    neighbours = nearest_items(offsets, items, num_items=ds.num_items)
    neighbours.rank(histories, 50)              # [B, 50] item ids

similarity(i, j) = #users with both / √(#users with i · #users with j); a history scores an item by
the sum of its similarities to the history's items.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# Pairs (item, item of the same user) expanded at once: bounds the working memory at about 80 MB.
PAIRS = 1 << 20


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The nearest items of each item, best first."""

    offsets: Ints  # [num_items + 2]; item i's neighbours are entries offsets[i] … offsets[i + 1]
    item_ids: npt.NDArray[np.int32]
    similarities: Floats

    def rank(self, histories: Ints, k: int) -> Ints:
        """Return `[B, k]` item ids by summed similarity, ties by id, 0 where none is left.

        Args:
            histories: `[B, L]` item ids padded with 0.
            k: Length of the lists.
        """
        B = len(histories)
        stride = len(self.offsets)
        step = max(1, PAIRS // max(1, self._longest() * histories.shape[1]))
        ranked = np.zeros((B, k), dtype=np.int64)
        for start in range(0, B, step):
            rows, columns = np.nonzero(histories[start : start + step])
            items = histories[start : start + step][rows, columns]
            entries, source = expand(self.offsets[items], self.offsets[items + 1])
            keys = rows[source] * stride + self.item_ids[entries]
            keys, scores = _sum_by_key(keys, self.similarities[entries])
            users, ids = np.divmod(keys, stride)
            place, order = _place_in_row(users, scores)
            kept = order[place < k]
            ranked[start + users[kept], place[place < k]] = ids[kept]
        return ranked

    def _longest(self) -> int:
        return int(np.diff(self.offsets).max(initial=0))


def nearest_items(
    offsets: Ints,
    items: npt.NDArray[np.integer],
    *,
    num_items: int,
    neighbours: int = 200,
    max_sequence: int = 200,
) -> Neighbours:
    """Find each item's most similar items in training sequences.

    Args:
        offsets: `[U + 1]`; user u's sequence is `items[offsets[u]:offsets[u + 1]]`.
        items: Item ids of all sequences, oldest first.
        num_items: Ids run from 1 to this.
        neighbours: Kept per item.
        max_sequence: Only so many of a user's latest items are paired: the cost of a user grows
            with the square of the length, and the longest sequences are seldom real users.
    """
    users, ids = _distinct_pairs(offsets, items, num_items, max_sequence)
    by_user = np.searchsorted(users, np.arange(len(offsets)))  # [U + 1] into ids
    frequency = np.bincount(ids, minlength=num_items + 1)
    by_item = np.concatenate([[0], np.cumsum(frequency)])  # [num_items + 2]
    users_of = users[np.argsort(ids, kind="stable")]
    norms = np.sqrt(np.maximum(frequency, 1))
    counts, found, similarities = [np.zeros(1, dtype=np.int64)], [], []
    for first, stop in _blocks(by_item, np.diff(by_user)[users_of]):
        partners = users_of[by_item[first] : by_item[stop]]
        entries, source = expand(by_user[partners], by_user[partners + 1])
        row = np.repeat(np.arange(stop - first), frequency[first:stop])[source]
        keys, together = _sum_by_key(row * (num_items + 1) + ids[entries])
        row, other = np.divmod(keys, num_items + 1)
        itself = other == row + first
        row, other, together = row[~itself], other[~itself], together[~itself]
        similarity = together / (norms[row + first] * norms[other])
        # Squared and without the row's own norm: quotients of integers, in which equal ones tie.
        place, order = _place_in_row(row, together.astype(np.float64) ** 2 / frequency[other])
        kept = order[place < neighbours]
        counts.append(np.bincount(row[kept], minlength=stop - first))
        found.append(other[kept].astype(np.int32))
        similarities.append(similarity[kept].astype(np.float32))
    return Neighbours(
        np.cumsum(np.concatenate(counts)), np.concatenate(found), np.concatenate(similarities)
    )


def expand(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return all positions of the ranges [start, end), and the range each belongs to."""
    lengths = ends - starts
    source = np.repeat(np.arange(len(starts)), lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(len(source)) + (starts - before)[source], source


def _distinct_pairs(
    offsets: Ints, items: npt.NDArray[np.integer], num_items: int, max_sequence: int
) -> tuple[Ints, Ints]:
    """Return (user, item) pairs of the latest items, each once, sorted by user."""
    starts = np.maximum(offsets[:-1], offsets[1:] - max_sequence)
    entries, users = expand(starts, offsets[1:])
    pairs = np.unique(users * (num_items + 1) + items[entries])
    users, ids = np.divmod(pairs, num_items + 1)
    return users, ids


def _blocks(by_item: Ints, lengths: Ints) -> Iterator[tuple[int, int]]:
    """Cut the items 0 … num_items into runs of about `PAIRS` pairs, at least one item each."""
    pairs_before = np.concatenate([[0], np.cumsum(lengths)])[by_item]  # [num_items + 2]
    first, last = 0, len(by_item) - 1
    while first < last:
        within = np.searchsorted(pairs_before, pairs_before[first] + PAIRS, side="right") - 1
        stop = int(min(max(within, first + 1), last))
        yield first, stop
        first = stop


def _sum_by_key(
    keys: Ints, values: npt.NDArray[np.floating] | None = None
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Return the distinct keys, ascending, and the sum (or count) of the values of each."""
    if values is None:
        distinct, counts = np.unique(keys, return_counts=True)
        return distinct, counts.astype(np.float64)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    if not len(starts):
        return keys, np.zeros(0)
    return keys[starts], np.add.reduceat(values[order].astype(np.float64), starts)


def _place_in_row(rows: Ints, scores: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Rank entries within their row (rows ascending) by score, ties in the given order.

    Returns:
        The 0-based places, and the entries they belong to: entry `order[n]` has place `place[n]`.
    """
    order = np.lexsort((-scores, rows))
    starts = np.searchsorted(rows, rows)  # rows[order] == rows: the sort stays within rows
    return np.arange(len(rows)) - starts, order
