"""A prepared dataset, memory-mapped: it opens in milliseconds, whatever its size.

dataset = open_dataset("books")
for batch in dataset.batches(128, seed=19): ...      # batch.history [B, L], batch.item_ids [B]
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.data.dataset.arrays import map_array, range_positions
from crossbatch.data.dataset.batches import Batch, EvalBatch, eval_batches, training_batches
from crossbatch.data.dataset.features import Feature, encode_table, read_encoders, read_features
from crossbatch.data.dataset.manifest import (
    check_consistency,
    check_listed,
    check_shard,
    read_manifest,
)
from crossbatch.data.dataset.samples import Draw, Events, Samples, Training, no_samples, read_events
from crossbatch.data.dataset.shards import FOLDER as SHARDS
from crossbatch.data.dataset.shards import ShardFiles, Shards
from crossbatch.data.dataset.string_table import Keys
from crossbatch.errors import ConfigError, DataError, check_choice
from crossbatch.remote import is_url, local_path, normal_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import polars as pl


SPLIT_NAMES = ("valid", "test")
HISTORIES = ("all", "session")
CHOICE_SEED = 0  # of the samples that `max_users` chooses, for every dataset and every run


def open_dataset(path: Path | str) -> Dataset:
    """Open a folder that `crossbatch prepare` or `crossbatch synth` wrote."""
    return Dataset(path)


class Dataset(Keys):
    """A dataset folder.  Item ids are 1 … `num_items`, 0 is padding; user ids start at 0.

    Args:
        path: The folder, or its URL in an object store.

    Raises:
        DataError: If it is no dataset, incomplete, or of another format version.
    """

    def __init__(self, path: Path | str) -> None:
        self.url = normal_url(path) if is_url(path) else None
        self.path = local_path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)
        try:
            counts = self.manifest["counts"]
            self.num_items, self.num_users = int(counts["items"]), int(counts["users"])
            self.num_interactions = int(counts["interactions"])
            self._files = dict(self.manifest["files"].items())
            min_history = self.manifest["options"].get("min_history", 1)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise DataError(f"{path} has a broken manifest ({error}): prepare it again") from None
        if min_history != 1:
            raise DataError(
                f"{path} was prepared before release 0.2.0, without users of up to {min_history} "
                "items: prepare it again"
            )
        self.events = read_events(self.path, self._files)
        self.offsets = self.events.offsets  # [num_users + 1] int64
        self.items = self.events.items  # [n] int32, sequences end to end
        self.times = self.events.times  # [n] int64, microseconds
        self.weight_offsets, self.shown = self.events.weight_offsets, self.events.shown
        self.session_places = self.events.session_places
        self.item_counts = self._load("item_counts")  # [num_items + 1] int64
        self._samples: dict[Draw, Samples] = {}
        self.stored_laws = {"sampler_law": self._load("sampler_law")}
        self._laws = {Draw(): self.stored_laws["sampler_law"]}
        self.shards: Shards | None = None  # of the training sequences; None where they are whole
        if "shards" in self.manifest:
            self.stored_laws["interaction_law"] = self._load("interaction_law")
            self._laws[Draw(sample_by="interaction")] = self.stored_laws["interaction_law"]
            files = ShardFiles(self.path, self._files, self._check_shard, self.url)
            self.shards = Shards(files, self.manifest["shards"], self._laws, self._files)

    @property
    def place(self) -> str:
        """Where it can be opened again: its absolute path, or its URL in an object store."""
        return self.url or str(self.path.resolve())

    def __repr__(self) -> str:
        held_out = ", ".join(f"{self.num_eval_users(name):,} {name}" for name in SPLIT_NAMES)
        return (
            f"<Dataset {self.path}: {self.num_users:,} users, {self.num_items:,} items, "
            f"{self.num_interactions:,} interactions; held out: {held_out}>"
        )

    def batches(
        self,
        batch_size: int,
        *,
        seed: int,
        history_length: int = 20,
        start: int = 0,
        later: bool = False,
        min_history: int = 1,
        sample_by: str = "user",
        newest_days: float = 0.0,
        histories: str = "all",
    ) -> Iterator[Batch]:
        """Yield training batches without end.

        Args:
            batch_size: B, samples in a batch.
            seed: Batch number i depends on the seed and i alone.
            history_length: L, the most recent items that are shown.
            start: Number of the first batch: a run that stopped after n batches resumes at n.
            later: Whether to add the items that came after each positive, `batch.later`.
            min_history: Items that a sample has before its target, at least.
            sample_by: "user": B distinct users, each with one of its targets, both uniform;
                "interaction": B uniform pairs of a user and a target, users may repeat. With
                weights, targets or pairs are drawn in proportion to them.
            newest_days: Days before the last training interaction whose items are targets; 0 for
                all. Histories reach further back.
            histories: "all" items before a target, or those of its "session" alone; the first
                target of a session has the items of earlier ones.
        """
        for name, size in (("batch_size", batch_size), ("history_length", history_length)):
            if size < 1:
                raise ConfigError(f"{name} must be at least 1, got {size}")
        if start < 0 or seed < 0:
            raise ConfigError(f"seed and start must not be negative, got {seed} and {start}")
        self._check_histories(histories)
        draw = Draw(min_history, sample_by, newest_days)

        def drawn(
            events: Events, samples: Samples, first: int, first_event: int = 0
        ) -> Iterator[Batch]:
            return training_batches(
                events.items,
                samples,
                batch_size,
                seed=seed,
                history_length=history_length,
                start=first,
                later=later,
                first_event=first_event if self.context_features else None,
                places=events.session_places if histories == "session" else None,
                shown=events.shown,
            )

        if self.shards is not None:
            return self.shards.batches(
                draw,
                batch_size,
                lambda shard, samples, first: drawn(
                    shard.events, samples, first, shard.first_event
                ),
                seed=seed,
                start=start,
            )
        samples = self.samples(*draw)
        if sample_by == "user" and batch_size > len(samples.users):
            raise ConfigError(
                f"batch_size must not exceed the {len(samples.users):,} training users with more "
                f"than min_history = {min_history} items, got {batch_size:,}: lower one of them"
            )
        return drawn(self.events, samples, start)

    def _check_histories(self, histories: str) -> None:
        check_choice("histories", histories, HISTORIES)
        if histories == "session" and self.session_places is None:
            raise ConfigError(
                f'histories = "session" needs sessions, which {self.path} has none of: prepare it '
                "with --session COLUMN or --session-gap MINUTES"
            )

    def samples(
        self, min_history: int = 1, sample_by: str = "user", newest_days: float = 0.0
    ) -> Samples:
        """Return what `batches` with the same options draws from; not of a dataset in shards."""
        draw = Draw(min_history, sample_by, newest_days)
        draw.check()
        if draw not in self._samples:
            training = self._training
            samples = training.samples(draw, self.last_training_time if newest_days else 0)
            if not (samples.totals > 0).any():
                longest = int((training.ends - training.starts).max())
                raise no_samples(draw, longest, weightless=len(samples.users) > 0)
            self._samples[draw] = samples.with_targets()
        return self._samples[draw]

    @cached_property
    def last_training_time(self) -> int:
        """Time of the last training interaction, in microseconds since 1970."""
        if self.shards is not None:
            return self.shards.last_time
        return int(self.times[self._training.ends - 1].max())

    def num_samples(self, min_history: int = 1, newest_days: float = 0.0) -> int:
        """Return how many pairs of a user and a target there are: a pass over the data."""
        if self.shards is not None:
            return self.shards.totals(Draw(min_history, newest_days=newest_days)).samples
        return self.samples(min_history, newest_days=newest_days).count()

    def sampling_law(
        self, min_history: int = 1, sample_by: str = "user", newest_days: float = 0.0
    ) -> np.ndarray:
        """Return the exact probability of each item to be the positive of a row of `batches`.

        The first call with other options than the stored ones reads the log once.
        Shape `[num_items + 1]`, float64; items that are never a target have 0.
        """
        draw = Draw(min_history, sample_by, newest_days)
        if draw not in self._laws:
            if self.shards is not None:
                self._laws[draw] = self.shards.totals(draw).law
            else:
                self._laws[draw] = self.samples(*draw).law(self.items, self.num_items)
        return self._laws[draw]

    @property
    def sampler_law(self) -> np.ndarray:
        """`sampling_law` of `batches` without options.  Shape `[num_items + 1]`, float64."""
        return self.sampling_law()

    @property
    def eligible_samples(self) -> int:
        """`num_samples` of `batches` without options."""
        return self.num_samples()

    def eval_batches(
        self,
        split: str,
        *,
        batch_size: int = 1024,
        history_length: int = 20,
        max_users: int | None = None,
        histories: str = "all",
    ) -> Iterator[EvalBatch]:
        """Yield the samples of "valid" or "test" in stored order, each with all its targets.

        Args:
            split: "valid" or "test".
            batch_size: Samples in a batch; the last may be short.
            history_length: L, the most recent items that are shown.
            max_users: At most so many samples: a random choice, the same one at every call.
            histories: As in `batches`.
        """
        if batch_size < 1 or history_length < 1:
            raise ConfigError(
                f"batch_size and history_length must be ≥ 1, got {batch_size}, {history_length}"
            )
        self._check_histories(histories)
        users, cuts, ends = self.part(split)
        if max_users is not None and max_users < len(users):
            chosen = np.random.default_rng(CHOICE_SEED).choice(len(users), max_users, replace=False)
            users, cuts, ends = (array[np.sort(chosen)] for array in (users, cuts, ends))
        return eval_batches(
            self.items,
            users,
            self.offsets[users],
            cuts,
            ends,
            batch_size=batch_size,
            history_length=history_length,
            weight_offsets=self.weight_offsets,
            events=bool(self.context_features),
            places=self.session_places if histories == "session" else None,
        )

    def train_sequences(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the training parts of all users: offsets int64 `[U + 1]` and item ids, CSR.

        Users with fewer than two training items are left out.
        """
        if self.shards is not None:
            return self.shards.sequences()[1:]
        positions, offsets = range_positions(self._training.starts, self._training.ends)
        return offsets, self.items[positions]

    @property
    def train_users(self) -> np.ndarray:
        """Ids of the training users, in the order of `train_sequences`.  Shape `[U]`."""
        return self.shards.sequences()[0] if self.shards is not None else self._training.users

    def num_eval_users(self, split: str) -> int:
        """Return how many samples "valid" or "test" has."""
        return len(self.part(split)[0])

    @cached_property
    def item_features(self) -> Mapping[str, Feature]:
        """Content of the items; row 0 is padding."""
        return read_features(self.path / "features/items")

    @cached_property
    def user_features(self) -> Mapping[str, Feature]:
        """Content of the users."""
        return read_features(self.path / "features/users")

    @cached_property
    def context_features(self) -> Mapping[str, Feature]:
        """Context of the interactions: what was known when each was asked for; a row for each."""
        features = read_features(self.path / "features/context")
        if self.shards is None:
            return features
        return {name: self.shards.context(name, each) for name, each in features.items()}

    def encode_items(self, table: pl.DataFrame) -> dict[str, Feature]:
        """Encode new items with the dataset's vocabularies and statistics: one row an item."""
        return encode_table(read_encoders(self.path / "features/items"), table)

    def encode_users(self, table: pl.DataFrame) -> dict[str, Feature]:
        """Encode new users with the dataset's vocabularies and statistics: one row a user."""
        return encode_table(read_encoders(self.path / "features/users"), table)

    def verify(self, *, shards: bool = True) -> None:
        """Check every file, and that the arrays fit together.

        Args:
            shards: Whether to check those of a dataset in shards now; otherwise each is when it is
                read for the first time, and those in an object store when they are fetched.

        Raises:
            DataError: If a file differs from its checksum, or the arrays contradict each other.
        """
        for name, checksum in self._files.items():
            if not name.startswith(f"{SHARDS}/"):
                check_listed(self.path, name, checksum)
        check_consistency(self)
        if shards and self.shards is not None:
            self.shards.verify()

    def _check_shard(self, number: int) -> None:
        assert self.shards is not None
        check_shard(self, self.shards.mapped(number), self.shards.entries[number])

    def training_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored training users and where each one's training part ends.  int64."""
        return np.array(self._load("train_users")), np.array(self._load("train_ends"))

    @cached_property
    def _training(self) -> Training:
        """Users with two training items or more, and their training parts."""
        if self.shards is not None:
            raise DataError(
                f"{self.path} has its training sequences in shards, which are read one by one: "
                "prepare it without --shards"
            )
        users, ends = self.training_arrays()
        return Training(self.events, users, users, ends)

    def part(self, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return users, first targets and ends of "valid" or "test".  Shapes `[E]`, int64."""
        check_choice("split", split, SPLIT_NAMES)
        users, cuts, ends = (self._load(f"{split}_{name}") for name in ("users", "cuts", "ends"))
        return users, cuts, ends

    def _load(self, name: str) -> np.ndarray:
        return map_array(self.path / f"{name}.npy")
