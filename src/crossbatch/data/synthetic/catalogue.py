"""The items of a synthetic log: their topics, popularity and content, and which visit gets which.

Items get exact counts in random order, block by block: visit number j of a topic gets place π(j) of
that topic's items laid end to end, where π is a small keyed permutation (Feistel network with cycle
walking); nothing is stored, so that a log of any length can be generated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.prepare.sequences import mix

TOPICS = 5  # of a category
MIN_COUNT = 5  # interactions of every item and user, at least, so that the default filter keeps all
ITEM_EXPONENT = 1.0  # Zipf exponent inside a topic
ROUNDS = 4  # of the Feistel network
SWAP_ROUNDS = 4
CATEGORY_NAMES = (
    "Astronomy", "Baking", "Chess", "Drawing", "Ecology", "Fishing", "Gardening", "History",
    "Illusions", "Jazz", "Knitting", "Languages", "Mountains", "Navigation", "Origami", "Poetry",
    "Quilting", "Robotics", "Sailing", "Travel", "Urbanism", "Volcanoes", "Weaving", "Zoology",
)  # fmt: skip
ADJECTIVES = (
    "quiet", "hidden", "golden", "last", "early", "little", "distant", "broken", "open", "lost",
    "northern", "silver", "endless", "simple", "second", "forgotten",
)  # fmt: skip
NOUNS = (
    "river", "garden", "letter", "house", "winter", "machine", "island", "morning", "window",
    "road", "mirror", "season", "harbour", "forest", "clock", "stranger",
)  # fmt: skip
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "tr")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "eo", "ia")


class Catalogue(NamedTuple):
    """Items in the order of their topics."""

    topics: np.ndarray  # [I] int64, topic of each item
    bounds: np.ndarray  # [I] int64, running sum of the items' interactions; ends at their number
    topic_starts: np.ndarray  # [num_topics + 1], interactions of all topics before each topic
    keys: np.ndarray  # [I] int64, numbers of the items in the log, in random order


def make_catalogue(rng: np.random.Generator, visits: np.ndarray, num_items: int) -> Catalogue:
    """Distribute items over topics by demand, and demand over the items of a topic by Zipf's law.

    `visits` are the interactions of each topic.  Shape `[num_topics]`, int64.
    """
    sizes = _sizes(visits, num_items)
    topics = np.repeat(np.arange(len(visits)), sizes)
    ranks = np.arange(num_items) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    weights = (ranks + 1.0) ** -ITEM_EXPONENT
    totals = np.bincount(topics, weights, minlength=len(visits))
    spare = np.maximum(visits - MIN_COUNT * sizes, 0)
    share = np.cumsum(weights / totals[topics] * spare[topics])
    extra = np.diff(np.floor(share + 1e-6), prepend=0.0).astype(np.int64)
    bounds = np.cumsum(extra + MIN_COUNT)
    bounds[-1] = visits.sum()
    starts = np.concatenate([[0], np.cumsum(visits)])
    return Catalogue(topics, bounds, starts, rng.permutation(num_items))


def _sizes(visits: np.ndarray, num_items: int) -> np.ndarray:
    """Return how many items each topic gets: sub-linear in demand, `MIN_COUNT` visits for each."""
    most = np.maximum(visits // MIN_COUNT, visits > 0)
    demand = np.where(visits > 0, visits.astype(np.float64) ** 0.75, 0.0)
    low, high = 0.0, float(num_items)  # find the factor at which the sizes add up
    for _ in range(200):
        factor = (low + high) / 2
        total = np.clip(np.floor(demand * factor), visits > 0, most).sum()
        low, high = (factor, high) if total < num_items else (low, factor)
    sizes = np.clip(np.floor(demand * low), visits > 0, most).astype(np.int64)
    room = np.flatnonzero(sizes < most)
    sizes[room[: num_items - int(sizes.sum())]] += 1
    return sizes


def item_table(catalogue: Catalogue, rng: np.random.Generator) -> pl.DataFrame:
    """Return the items' content: two words of the title depend on topic and category."""
    topics, num_items = catalogue.topics, len(catalogue.topics)
    categories = topics // TOPICS
    names = category_names(int(categories.max()) + 1)
    topic_words = made_up_words(3 * (int(topics.max()) + 1))
    category_words = made_up_words(4 * len(names), salt=1)
    pick = rng.integers(0, 2**31, size=(5, num_items))
    words = {
        "adjective": np.array(ADJECTIVES)[pick[0] % len(ADJECTIVES)],
        "topic": topic_words[3 * topics + pick[1] % 3],
        "category_word": category_words[4 * categories + pick[2] % 4],
        "noun": np.array(NOUNS)[pick[3] % len(NOUNS)],
    }
    price = np.exp(2.0 + 0.25 * (categories % 5) + 0.4 * rng.standard_normal(num_items))
    price = np.where(pick[4] % 20 == 0, np.nan, np.round(price, 2))  # one in twenty is missing
    frame = pl.DataFrame({"key": item_keys(catalogue.keys), "category": names[categories], **words})
    title = pl.format("{} {} and the {} {}", *(pl.col(name).str.to_titlecase() for name in words))
    tags = pl.concat_list(pl.col("category").str.to_lowercase(), "topic", "noun")
    prices = pl.Series("price", price, nan_to_null=True)
    return frame.select("key", title.alias("title"), "category", tags.alias("tags"), prices)


def item_keys(numbers: np.ndarray) -> pl.Series:
    """Return the items' keys in the log."""
    return "B" + pl.Series(numbers).cast(pl.String).str.zfill(8)


def category_names(count: int) -> np.ndarray:
    """Return distinct names for any number of categories.  Shape `[count]`."""
    rounds = np.arange(count) // len(CATEGORY_NAMES)
    base = np.array(CATEGORY_NAMES)[np.arange(count) % len(CATEGORY_NAMES)]
    return np.array(
        [f"{name} {r + 1}" if r else name for name, r in zip(base, rounds, strict=True)]
    )


def made_up_words(count: int, salt: int = 0) -> np.ndarray:
    """Return distinct pronounceable words, the same every time.  Shape `[count]`, str."""
    syllables = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
    base = len(syllables)
    words = []
    for number in range(count):
        # an odd multiplier permutes the numbers below base**3: neighbours do not look alike
        code = (number * 1_300_021 + 7 * salt) % base**3
        parts = (syllables[code % base], syllables[code // base % base], syllables[code // base**2])
        words.append("".join(parts) + ("n", "x")[salt % 2])
    return np.array(words)


def permuted(numbers: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Permute each number within its own range, below its size.  Shapes `[n]`, int64.

    Numbers with the same size and key are permuted by the same permutation.
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
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("group")
    return pl.Series("group", groups).to_frame().select(place).to_series().to_numpy()


def spread_repeats(
    rng: np.random.Generator, users: np.ndarray, items: np.ndarray, topics: np.ndarray
) -> np.ndarray:
    """Swap most items that a user has twice with those of other visits to the same topic.

    Swaps stay inside a topic, so its counts stay exact.  Shapes `[n]`.
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
