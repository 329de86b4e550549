"""The items: how many each topic has, how popular each is, and their content."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.synthetic.title_words import ADJECTIVES, CATEGORY_NAMES, NOUNS, coined
from crossbatch.data.synthetic.topic_visits import TOPICS

MIN_COUNT = 5  # every item gets so many interactions, so that the usual filter keeps all
ITEM_EXPONENT = 1.0  # Zipf exponent inside a topic


class Catalogue(NamedTuple):
    """Items in the order of their topics.

    Attributes:
        topics: Topic of each item.  Shape `[I]`, int64.
        bounds: Running sum of the items' interactions; ends at their number.  Shape `[I]`, int64.
        topic_starts: Interactions of all topics before each topic.  Shape `[num_topics + 1]`.
        keys: Numbers under which the items appear, in no telling order.  Shape `[I]`, int64.
    """

    topics: np.ndarray
    bounds: np.ndarray
    topic_starts: np.ndarray
    keys: np.ndarray


def stock(rng: np.random.Generator, visits: np.ndarray, num_items: int) -> Catalogue:
    """Spread items over topics by demand, and demand over the items of a topic by Zipf's law.

    Args:
        rng: Decides the items' keys.
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
    """Return the items' content: words of the title tell topic and category, the rest is noise."""
    topics, num_items = catalogue.topics, len(catalogue.topics)
    categories = topics // TOPICS
    names = category_names(int(categories.max()) + 1)
    topic_words = coined(3 * (int(topics.max()) + 1))
    category_words = coined(4 * len(names), salt=1)
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
    cheap = pl.Series(pick[4] % 20 == 0)  # one price in twenty is not known
    return frame.with_columns(
        pl.when(cheap).then(None).otherwise(pl.col("price")).alias("price")
    ).select("key", "title", "category", "tags", "price")


def item_keys(numbers: np.ndarray) -> pl.Series:
    """Return the items' keys as they stand in the log."""
    return "B" + pl.Series(numbers).cast(pl.String).str.zfill(8)


def category_names(count: int) -> np.ndarray:
    """Return distinct names for any number of categories.  Shape `[count]`."""
    rounds = np.arange(count) // len(CATEGORY_NAMES)
    base = np.array(CATEGORY_NAMES)[np.arange(count) % len(CATEGORY_NAMES)]
    return np.array(
        [f"{name} {r + 1}" if r else name for name, r in zip(base, rounds, strict=True)]
    )
