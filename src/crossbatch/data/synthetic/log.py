"""A synthetic log as a `Source`, generated while it is read.

Two passes over the same seeded visits: the first counts the visits of each topic, the second
assigns items to them, so that users, items and interactions are exactly as many as asked for.

A user has a few interests that drift. An interest is a category; a category is a ring of `TOPICS`
topics. At each step a user may switch between interests, replace one by a new one, or move to the
next topic of the ring: the next item depends on the last ones, which a popularity list cannot
model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from crossbatch.data.readers.source import Column, Source, Tally
from crossbatch.data.synthetic.catalogue import (
    MIN_COUNT,
    TOPICS,
    Catalogue,
    item_keys,
    item_table,
    make_catalogue,
    permuted,
    places_in_group,
    spread_repeats,
)
from crossbatch.errors import ConfigError
from crossbatch.files import atomic_folder, write_document

INTERESTS = 3  # interests of a user at a time
SWITCH, DRIFT, NOISE = 0.2, 0.03, 0.05  # chances at every step
FORWARD, JUMP = 0.35, 0.10  # to the next topic of the ring, to any
SLOT_SHARES = np.cumsum([0.6, 0.3, 0.1])
BLOCK_USERS = 50_000
GENERATED = ".generated.json"  # in a generated raw log: its options
FIRST_DAY, DAYS = 12_418, 3_650  # ten years from 2004
DAY = 86_400
REGIONS = ("north", "east", "south", "west", "coast", "hills", "islands", "city")
ITEM_COLUMNS = (
    Column("title", "text"),
    Column("category", "categorical"),
    Column("tags", "multi_valued"),
    Column("price", "numeric"),
)
USER_COLUMNS = (Column("region", "categorical"), Column("age", "numeric"))


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


@dataclass(frozen=True, slots=True)
class SynthOptions:
    """The size of a synthetic log.

    Attributes:
        users: Every user has five interactions at least.
        items: Every item has five interactions at least.
        interactions: In all.
        seed: Same seed, same bytes.
    """

    users: int = 6_000
    items: int = 3_000
    interactions: int = 120_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.users < 10 or self.items < 20:
            raise ConfigError(
                f"users must be ≥ 10 and items ≥ 20, got {self.users} and {self.items}"
            )
        # items are assigned topic by topic, which leaves a few interactions of each over
        least = max(MIN_COUNT * self.users, (MIN_COUNT + 1) * self.items, 200)
        if self.interactions < least:
            raise ConfigError(
                f"interactions must be at least {least:,} (five a user, six an item), "
                f"got {self.interactions:,}"
            )
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, got {self.seed}")

    @property
    def categories(self) -> int:
        """About 150 items each, and never so many that one could stay empty."""
        return max(1, min(self.items // 150, self.interactions // 2_000))


def synthetic_source(options: SynthOptions) -> Source:
    """Return a source that generates its log while it is read."""
    log = SyntheticLog(options)
    return Source(
        format="synthetic",
        files=(),
        batches=log.batches,
        time_unit="s",
        item_table=lambda _keys, _tally: log.items(),
        user_table=lambda _keys, _tally: log.users(),
        item_columns=ITEM_COLUMNS,
        user_columns=USER_COLUMNS,
        title="title",
        expected_rows=options.interactions,
    )


def write_raw(options: SynthOptions, out: Path | str, *, overwrite: bool = False) -> None:
    """Write the log as a folder of Parquet files, as raw material for `crossbatch prepare`.

    With `overwrite` it replaces only a generated log, which has the file `GENERATED`.
    """
    log = SyntheticLog(options)
    with atomic_folder(Path(out), overwrite=overwrite, marker=GENERATED) as folder:
        write_document(folder / GENERATED, asdict(options))
        (folder / "interactions").mkdir()
        for number, batch in enumerate(log.batches(Tally())):
            named = batch.rename({"time": "timestamp"})
            named.write_parquet(folder / "interactions" / f"part-{number:04d}.parquet")
        log.items().rename({"key": "item"}).write_parquet(folder / "items.parquet")
        log.users().rename({"key": "user"}).write_parquet(folder / "users.parquet")


@dataclass
class SyntheticLog:
    """Generates interactions block by block; memory is that of a block, and of users and items."""

    options: SynthOptions
    _catalogue: Catalogue | None = None
    _users: list[pl.DataFrame] = field(default_factory=list)

    def batches(self, tally: Tally) -> Iterator[pl.DataFrame]:
        """Yield all interactions, users in order, each chronological."""
        lengths = self._lengths()
        self._users.clear()
        topic_counts = np.zeros(self.options.categories * TOPICS, dtype=np.int64)
        for _, _, topics, _ in self._visits(lengths):
            topic_counts += np.bincount(topics, minlength=len(topic_counts))
        self._catalogue = make_catalogue(self._rng("keys"), topic_counts, self.options.items)
        assigned = np.zeros_like(topic_counts)
        for block, span, topics, interests in self._visits(lengths):
            users = np.repeat(np.arange(len(lengths))[span], lengths[span])
            items = self._assign_items(self._catalogue, topics, users, assigned, block)
            times = _times(self._rng("times", block), lengths[span])
            self._users.append(self._user_rows(span, interests, block))
            yield pl.DataFrame(
                {
                    "user": _user_keys(users),
                    "item": item_keys(self._catalogue.keys[items]),
                    "time": times,
                }
            )

    def items(self) -> pl.DataFrame:
        """Return the items' content; the log must have been read before."""
        if self._catalogue is None:
            raise RuntimeError("the items are known once the log has been read")
        return item_table(self._catalogue, self._rng("content"))

    def users(self) -> pl.DataFrame:
        """Return the users' content; the log must have been read before."""
        return pl.concat(self._users)

    def _visits(self, lengths: np.ndarray) -> Iterator[tuple[int, slice, np.ndarray, np.ndarray]]:
        """Yield number, users, topics and first interests of every block."""
        for block in range(-(-len(lengths) // BLOCK_USERS)):
            span = slice(block * BLOCK_USERS, (block + 1) * BLOCK_USERS)
            rng = self._rng("walk", block)
            yield block, span, *visit_topics(rng, lengths[span], self.options.categories)

    def _assign_items(
        self,
        catalogue: Catalogue,
        topics: np.ndarray,
        users: np.ndarray,
        assigned: np.ndarray,
        block: int,
    ) -> np.ndarray:
        """Return an item for every visit of a block; `assigned`, visits so far, is updated."""
        numbers = assigned[topics] + places_in_group(topics)
        assigned += np.bincount(topics, minlength=len(assigned))
        sizes = np.diff(catalogue.topic_starts)[topics]
        places = permuted(numbers, sizes, topics + self.options.seed)
        slots = catalogue.topic_starts[topics] + places
        items = np.searchsorted(catalogue.bounds, slots, side="right")
        return spread_repeats(self._rng("swaps", block), users, items, topics)

    def _lengths(self) -> np.ndarray:
        """Return how many interactions each user has: five, and a log-normal share of the rest."""
        weights = np.exp(1.1 * self._rng("lengths").standard_normal(self.options.users))
        spare = self.options.interactions - MIN_COUNT * self.options.users
        share = np.cumsum(weights) / weights.sum() * spare
        share[-1] = spare
        extra: np.ndarray = np.diff(np.floor(share + 1e-6), prepend=0.0).astype(np.int64)
        return extra + MIN_COUNT

    def _user_rows(self, span: slice, interests: np.ndarray, block: int) -> pl.DataFrame:
        rng = self._rng("people", block)
        size = len(interests)
        typical = rng.random(size) < 0.7  # the region depends on the interest in part
        region = np.where(typical, interests, rng.integers(0, 2**31, size)) % len(REGIONS)
        age = np.round(35 + 3 * (interests % 5) + 8 * rng.standard_normal(size))
        numbers = np.arange(self.options.users)[span]
        return pl.DataFrame(
            {"key": _user_keys(numbers), "region": np.array(REGIONS)[region], "age": age}
        )

    def _rng(self, purpose: str, block: int = 0) -> np.random.Generator:
        """Return a separate generator for each purpose and block."""
        return np.random.default_rng([self.options.seed, block, *purpose.encode()])


def _user_keys(numbers: np.ndarray) -> pl.Series:
    return "U" + pl.Series(numbers).cast(pl.String).str.zfill(8)


def _times(rng: np.random.Generator, lengths: np.ndarray) -> np.ndarray:
    """Return times in whole days, a third of neighbours on the same day.  `[Σ lengths]`."""
    total = int(lengths.sum())
    gaps = np.where(rng.random(total) < 0.3, 0.0, rng.standard_exponential(total))
    ends = np.cumsum(lengths)
    running = np.cumsum(gaps)
    base = np.repeat(running[ends - 1] - np.add.reduceat(gaps, ends - lengths), lengths)
    whole = np.repeat(np.add.reduceat(gaps, ends - lengths), lengths) + 1e-9
    start = rng.random(len(lengths)) * 0.9
    span = (1.0 - start) * rng.random(len(lengths)) ** 0.5
    begin, width = np.repeat(start, lengths), np.repeat(span, lengths)
    days = np.floor(DAYS * (begin + width * np.clip((running - base) / whole, 0.0, 1.0)))
    seconds: np.ndarray = (FIRST_DAY + days.astype(np.int64)) * DAY
    return seconds
