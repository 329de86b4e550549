"""Assign the items of a topic to its visits: exact counts in random order, block by block.

Visit number j of a topic gets place π(j) of that topic's items laid end to end, where π is a small
keyed permutation (Feistel network with cycle walking); nothing is stored, so that a log of any
length can be generated.
"""

from __future__ import annotations

import numpy as np

from crossbatch.data.prepare.sequences import mix

ROUNDS = 4
SWAP_ROUNDS = 4


def permuted(numbers: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Permute each number within its own range.

    Args:
        numbers: Each below its size.  Shape `[n]`, int64.
        sizes: Shape `[n]`, int64.
        keys: Numbers with the same size and key are permuted by the same permutation.  `[n]`.

    Returns:
        Shape `[n]`, int64.
    """
    half = np.array([max(1, (int(size - 1).bit_length() + 1) // 2) for size in np.unique(sizes)])
    half = half[np.searchsorted(np.unique(sizes), sizes)].astype(np.uint64)
    result = numbers.astype(np.uint64)
    outside = np.arange(len(numbers))
    while len(outside):
        result[outside] = _feistel(result[outside], half[outside], keys[outside])
        outside = outside[result[outside] >= sizes[outside].astype(np.uint64)]
    return result.astype(np.int64)


def _feistel(numbers: np.ndarray, half: np.ndarray, keys: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for number in range(ROUNDS):
        scrambled = mix(right * np.uint64(1_000_003) + keys.astype(np.uint64), number)
        left, right = right, left ^ (scrambled & mask)
    joined: np.ndarray = (left << half) | right
    return joined


def places_in_group(groups: np.ndarray) -> np.ndarray:
    """Return how many equal values come before each.  Shape `[n]`, int64."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    sizes = np.diff(np.append(first, len(groups)))
    places = np.empty(len(groups), dtype=np.int64)
    places[order] = np.arange(len(groups)) - np.repeat(first, sizes)
    return places


def spread_repeats(
    rng: np.random.Generator, users: np.ndarray, items: np.ndarray, topics: np.ndarray
) -> np.ndarray:
    """Swap most items that a user has twice with those of other visits to the same topic.

    Args:
        rng: Chooses the partners.
        users: Shape `[n]`.
        items: Shape `[n]`.
        topics: Swaps stay inside a topic, so its counts stay exact.  Shape `[n]`.

    Returns:
        The items after the swaps.  Shape `[n]`.
    """
    items = items.copy()
    order = np.argsort(topics, kind="stable")
    ordered = topics[order]
    for _ in range(SWAP_ROUNDS):
        pairs = users.astype(np.int64) * (int(items.max()) + 1) + items
        _, first = np.unique(pairs, return_index=True)
        repeated = np.ones(len(items), dtype=bool)
        repeated[first] = False
        mine = np.flatnonzero(repeated)
        low = np.searchsorted(ordered, topics[mine], side="left")
        high = np.searchsorted(ordered, topics[mine], side="right")
        partner = order[rng.integers(low, high)]
        # an event may take part in one swap only, else an item would be lost
        both = np.concatenate([mine, partner])
        _, where, times = np.unique(both, return_inverse=True, return_counts=True)
        alone = (times[where] == 1).reshape(2, -1).all(axis=0)
        mine, partner = mine[alone], partner[alone]
        items[mine], items[partner] = items[partner], items[mine]
    return items
