"""The topics that synthetic users visit: a few interests that drift, each a ring of topics.

An interest is a category; a category is a ring of `TOPICS` topics.  At each step a user may switch
between interests, replace one by a new one, or move to the next topic of the ring: the next item
depends on the last ones, which a popularity list cannot model.
"""

from __future__ import annotations

import numpy as np

TOPICS = 5  # topics of a category
INTERESTS = 3  # interests of a user at a time
SWITCH, DRIFT, NOISE = 0.2, 0.03, 0.05  # chances at every step
FORWARD, JUMP = 0.35, 0.10  # to the next topic of the ring, to any
SLOT_SHARES = np.cumsum([0.6, 0.3, 0.1])


def visit_topics(
    rng: np.random.Generator, lengths: np.ndarray, num_categories: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the topics that users visit: all users at once, one step at a time.

    `lengths` are the steps of each user.  Shape `[U]`.

    Returns:
        The topics of all users end to end, each in order `[Σ lengths]`, int32; the interest each
        user starts with `[U]`, int64.
    """
    weights = (np.arange(num_categories) + 2.0) ** -0.8  # Zipf's law
    cumulative = np.cumsum(weights / weights.sum())
    order = np.argsort(-lengths, kind="stable")  # the users with steps left are always a prefix
    starts = (np.cumsum(lengths) - lengths)[order]
    remaining = lengths[order]
    num_users = len(lengths)
    interests = _categories(rng, cumulative, (num_users, INTERESTS))
    places = rng.integers(TOPICS, size=(num_users, INTERESTS))
    slots = np.zeros(num_users, dtype=np.int64)
    topics = np.empty(int(lengths.sum()), dtype=np.int32)
    first_interest = np.empty(num_users, dtype=np.int64)
    first_interest[order] = interests[:, 0]
    for step in range(int(remaining[0]) if num_users else 0):
        active = int(np.searchsorted(-remaining, -step, side="left"))
        users = np.arange(active)
        slot = _move(rng, interests, places, slots[:active], cumulative)
        slots[:active] = slot
        visited = interests[users, slot] * TOPICS + places[users, slot]
        stray = np.flatnonzero(rng.random(active) < NOISE)
        strays = _categories(rng, cumulative, (len(stray),)) * TOPICS
        visited[stray] = strays + rng.integers(TOPICS, size=len(stray))
        topics[starts[:active] + step] = visited
    return topics, first_interest


def _move(
    rng: np.random.Generator,
    interests: np.ndarray,
    places: np.ndarray,
    slots: np.ndarray,
    cumulative: np.ndarray,
) -> np.ndarray:
    """Take one step in place and return the interest each user now follows.  Shape `[active]`."""
    active = len(slots)
    users = np.arange(active)
    switch = rng.random(active) < SWITCH
    slot = np.where(switch, np.searchsorted(SLOT_SHARES, rng.random(active)), slots)
    slot = np.minimum(slot, INTERESTS - 1)
    drifting = np.flatnonzero(rng.random(active) < DRIFT)
    interests[drifting, slot[drifting]] = _categories(rng, cumulative, (len(drifting),))
    chance = rng.random(active)
    place = places[users, slot]
    place = np.where(chance < FORWARD, (place + 1) % TOPICS, place)
    jumping = (chance >= FORWARD) & (chance < FORWARD + JUMP)
    places[users, slot] = np.where(jumping, rng.integers(TOPICS, size=active), place)
    return slot


def _categories(
    rng: np.random.Generator, cumulative: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    drawn = np.searchsorted(cumulative, rng.random(shape), side="right")
    return np.minimum(drawn, len(cumulative) - 1)
