"""The items of a synthetic log: how many each topic has, their popularity and their content."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.synthetic.topic_visits import TOPICS

MIN_COUNT = 5  # interactions of every item and user, at least, so that the default filter keeps all
ITEM_EXPONENT = 1.0  # Zipf exponent inside a topic
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
    """Items in the order of their topics.

    Attributes:
        topics: Topic of each item.  Shape `[I]`, int64.
        bounds: Running sum of the items' interactions; ends at their number.  Shape `[I]`, int64.
        topic_starts: Interactions of all topics before each topic.  Shape `[num_topics + 1]`.
        keys: Numbers of the items in the log, in random order.  Shape `[I]`, int64.
    """

    topics: np.ndarray
    bounds: np.ndarray
    topic_starts: np.ndarray
    keys: np.ndarray


def make_catalogue(rng: np.random.Generator, visits: np.ndarray, num_items: int) -> Catalogue:
    """Distribute items over topics by demand, and demand over the items of a topic by Zipf's law.

    Args:
        rng: Draws the items' keys.
        visits: Interactions of each topic.  Shape `[num_topics]`, int64.
        num_items: I.
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
    price = np.round(
        np.exp(2.0 + 0.25 * (categories % 5) + 0.4 * rng.standard_normal(num_items)), 2
    )
    frame = pl.DataFrame({"key": item_keys(catalogue.keys), "category": names[categories], **words})
    title = pl.format("{} {} and the {} {}", *(pl.col(name).str.to_titlecase() for name in words))
    tags = pl.concat_list(pl.col("category").str.to_lowercase(), "topic", "noun")
    frame = frame.with_columns(title.alias("title"), tags.alias("tags"), pl.Series("price", price))
    unpriced = pl.Series(pick[4] % 20 == 0)  # one price in twenty is missing
    return frame.with_columns(
        pl.when(unpriced).then(None).otherwise(pl.col("price")).alias("price")
    ).select("key", "title", "category", "tags", "price")


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
