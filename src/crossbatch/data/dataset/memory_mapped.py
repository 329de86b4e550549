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
from crossbatch.data.dataset.manifest import check_consistency, read_manifest
from crossbatch.data.dataset.samples import SAMPLE_BY, Samples
from crossbatch.data.dataset.string_table import KeyIndex, StringTable, sorted_hashes
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import is_as_written, listed_file
from crossbatch.remote import local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

SPLIT_NAMES = ("valid", "test")
HISTORIES = ("all", "session")
MOST_DAYS = 1e6  # the age of a log
CHOICE_SEED = 0  # of the samples that `max_users` chooses, for every dataset and every run


def open_dataset(path: Path | str) -> Dataset:
    """Open a folder that `crossbatch prepare` or `crossbatch synth` wrote."""
    return Dataset(path)


class Dataset:
    """A dataset folder.  Item ids are 1 … `num_items`, 0 is padding; user ids start at 0.

    Args:
        path: The folder, or its URL in an object store.

    Raises:
        DataError: If it is no dataset, incomplete, or of another format version.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = local_path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)
        try:
            counts = self.manifest["counts"]
            self.num_items, self.num_users = int(counts["items"]), int(counts["users"])
            # of the stored sampling law: now 1; earlier releases prepared for another one and left
            # users that were too short for it out of the training arrays
            self.prepared_min_history = int(self.manifest["options"].get("min_history", 1))
            self._left_out = int(counts["train_users_too_short"])
            self._files = dict(self.manifest["files"].items())
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise DataError(f"{path} has a broken manifest ({error}): prepare it again") from None
        self.offsets = self._load("offsets")  # [num_users + 1] int64
        self.items = self._load("items")  # [n] int32, sequences end to end
        self.times = self._load("times")  # [n] int64, microseconds
        self.item_counts = self._load("item_counts")  # [num_items + 1] int64
        # [n + 1] int64, weight of all interactions before each one; None where all count the same
        weighted = "weight_offsets.npy" in self._files
        self.weight_offsets = self._load("weight_offsets") if weighted else None
        # [n] int32, how many events of its session came before each one; None without sessions
        in_sessions = "session_places.npy" in self._files
        self.session_places = self._load("session_places") if in_sessions else None
        # items shown with each interaction, int32, and where those of each begin, int64 [n + 1]
        shown = "shown_items.npy" in self._files and "shown_offsets.npy" in self._files
        self.shown = (self._load("shown_items"), self._load("shown_offsets")) if shown else None
        self._samples: dict[tuple[int, str, float], Samples] = {}
        self._laws = {(self.prepared_min_history, "user", 0.0): self._load("sampler_law")}

    def __repr__(self) -> str:
        held_out = ", ".join(f"{self.num_eval_users(name):,} {name}" for name in SPLIT_NAMES)
        return (
            f"<Dataset {self.path}: {self.num_users:,} users, {self.num_items:,} items, "
            f"{len(self.items):,} interactions; held out: {held_out}>"
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
        samples = self.samples(min_history, sample_by, newest_days)
        if sample_by == "user" and batch_size > len(samples.users):
            raise ConfigError(
                f"batch_size must not exceed the {len(samples.users):,} training users with more "
                f"than min_history = {min_history} items, got {batch_size:,}: lower one of them"
            )
        return training_batches(
            self.items,
            samples,
            batch_size,
            seed=seed,
            history_length=history_length,
            start=start,
            later=later,
            events=bool(self.context_features),
            places=self._places(histories),
            shown=self.shown,
        )

    def _places(self, histories: str) -> np.ndarray | None:
        if histories not in HISTORIES:
            raise ConfigError(f"histories must be one of {', '.join(HISTORIES)}, got {histories!r}")
        if histories == "session" and self.session_places is None:
            raise ConfigError(
                f'histories = "session" needs sessions, which {self.path} has none of: prepare it '
                "with --session COLUMN or --session-gap MINUTES"
            )
        return self.session_places if histories == "session" else None

    def samples(
        self, min_history: int = 1, sample_by: str = "user", newest_days: float = 0.0
    ) -> Samples:
        """Return what `batches` with the same options draws from."""
        if min_history < 1:
            raise ConfigError(f"min_history must be at least 1, got {min_history}")
        if sample_by not in SAMPLE_BY:
            raise ConfigError(f"sample_by must be one of {', '.join(SAMPLE_BY)}, got {sample_by!r}")
        if not 0 <= newest_days < MOST_DAYS:
            raise ConfigError(f"newest_days must be 0 or a number of days, got {newest_days}")
        options = (min_history, sample_by, newest_days)
        if options not in self._samples:
            users, starts, ends = self._training
            firsts = starts + min_history
            if newest_days:
                firsts = np.maximum(firsts, self._first_newer(newest_days)[users])
            eligible = firsts < ends
            if newest_days and not eligible.any():
                raise ConfigError(
                    f"no item of the last newest_days = {newest_days:g} days of training has "
                    f"min_history = {min_history} items before it: use more days, or 0 for all"
                )
            if not eligible.any():
                raise ConfigError(
                    f"no training user has more than min_history = {min_history} items, but at "
                    f"most {(ends - starts).max()}: lower it"
                )
            kept = slice(None) if eligible.all() else eligible  # no copies where all are
            samples = Samples(
                users[kept], starts[kept], firsts[kept], ends[kept], sample_by, self.weight_offsets
            )
            if not (samples.totals > 0).any():
                raise ConfigError(
                    f"no target with min_history = {min_history} items before it has a weight "
                    "above 0: lower it"
                )
            self._samples[options] = samples.with_targets()
        return self._samples[options]

    def _first_newer(self, days: float) -> np.ndarray:
        """Return each user's first interaction of the last `days` of training.  `[num_users]`."""
        from crossbatch.data.prepare.splits import DAY, Sequences, before

        newest = self.last_training_time - round(days * DAY)
        return before(Sequences(self.offsets, self.times, (0, 0)), newest + 1)

    @cached_property
    def last_training_time(self) -> int:
        """Time of the last training interaction, in microseconds since 1970."""
        return int(self.times[self._training[2] - 1].max())

    def num_samples(self, min_history: int = 1, newest_days: float = 0.0) -> int:
        """Return how many pairs of a user and a target there are: a pass over the data."""
        return self.samples(min_history, newest_days=newest_days).count()

    def sampling_law(
        self, min_history: int = 1, sample_by: str = "user", newest_days: float = 0.0
    ) -> np.ndarray:
        """Return the exact probability of each item to be the positive of a row of `batches`.

        The first call with other options than the stored ones reads the log once.
        Shape `[num_items + 1]`, float64; items that are never a target have 0.
        """
        options = (min_history, sample_by, newest_days)
        if options not in self._laws:
            self._laws[options] = self.samples(*options).law(self.items, self.num_items)
        return self._laws[options]

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
            places=self._places(histories),
        )

    def train_sequences(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the training parts of all users: offsets int64 `[U + 1]` and item ids, CSR.

        Users with fewer than two training items are left out.
        """
        _, starts, ends = self._training
        positions, offsets = range_positions(starts, ends)
        return offsets, self.items[positions]

    @property
    def train_users(self) -> np.ndarray:
        """Ids of the training users, in the order of `train_sequences`.  Shape `[U]`."""
        return self._training[0]

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
        return read_features(self.path / "features/context")

    def encode_items(self, table: pl.DataFrame) -> dict[str, Feature]:
        """Encode new items with the dataset's vocabularies and statistics: one row an item."""
        return encode_table(read_encoders(self.path / "features/items"), table)

    def encode_users(self, table: pl.DataFrame) -> dict[str, Feature]:
        """Encode new users with the dataset's vocabularies and statistics: one row a user."""
        return encode_table(read_encoders(self.path / "features/users"), table)

    def item_keys(self, ids: Iterable[int]) -> list[str]:
        """Return the items' ids in the source; the padding's is empty."""
        return self._item_keys.take(ids)

    def item_titles(self, ids: Iterable[int]) -> list[str]:
        """Return the items' titles, their keys where there is none."""
        ids = [int(item) for item in ids]
        keys = self.item_keys(ids)
        if self.title_table is None:
            return keys
        titles = self.title_table.take(ids)
        return [title or key for title, key in zip(titles, keys, strict=True)]

    @cached_property
    def title_table(self) -> StringTable | None:
        """The titles as stored, if the source had any."""
        there = (self.path / "item_titles.bytes.npy").is_file()
        return StringTable(self.path, "item_titles") if there else None

    def item_ids(self, keys: Sequence[str]) -> np.ndarray:
        """Return the ids of items by their keys in the source, 0 where unknown.  int64."""
        return self._item_index.find([str(key) for key in keys]).clip(min=0)

    def user_keys(self, ids: Iterable[int]) -> list[str]:
        """Return the users' ids in the source."""
        return self._user_keys.take(ids)

    def user_ids(self, keys: Sequence[str]) -> np.ndarray:
        """Return the ids of users by their keys in the source, −1 where unknown.  int64."""
        return self._user_index.find([str(key) for key in keys])

    def verify(self) -> None:
        """Check every file, and that the arrays fit together.

        Raises:
            DataError: If a file differs from its checksum, or the arrays contradict each other.
        """
        for name, expected in self._files.items():
            path = listed_file(self.path, name)
            if path is None:
                raise DataError(f"{self.path} lists {name!r}, which is no file of the dataset")
            if not is_as_written(path, expected):
                raise DataError(f"{path} is missing or was changed: prepare the dataset again")
        check_consistency(self)

    def training_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored training users and where each one's training part ends.  int64."""
        return np.array(self._load("train_users")), np.array(self._load("train_ends"))

    @cached_property
    def _training(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Users with two training items or more, and where their training part starts and ends."""
        users, ends = self.training_arrays()
        if self.prepared_min_history > 1 and self._left_out:
            users, ends = self._with_short_users(users, ends)
        return users, self.offsets[users], ends

    def _with_short_users(
        self, stored_users: np.ndarray, stored_ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Split the sequences again for the users that an earlier release left out."""
        from crossbatch.data.prepare.splits import (  # which imports this package
            SPLITS,
            Sequences,
            SplitOptions,
        )

        options, first_valid = self.manifest["options"], len(stored_users) + self._left_out
        try:
            if not 0 < first_valid <= self.num_users:
                raise ValueError(f"{first_valid} training users of {self.num_users}")
            sequences = Sequences(self.offsets, self.times, (first_valid, first_valid))
            shares = SplitOptions(options["valid_share"], options["test_share"])
            split = SPLITS[options["split"]](sequences, shares)
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{self.path} has a broken manifest ({error}): prepare it again"
            ) from None
        lengths = split.train_ends - self.offsets[split.train_users]
        known = lengths > self.prepared_min_history
        users, ends = split.train_users, split.train_ends
        if not (
            np.array_equal(users[known], stored_users) and np.array_equal(ends[known], stored_ends)
        ):
            raise DataError(
                f"{self.path} leaves out users with up to {self.prepared_min_history} items, and "
                "its arrays do not say which: prepare it again"
            )
        return users[lengths > 1], ends[lengths > 1]

    def part(self, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return users, first targets and ends of "valid" or "test".  Shapes `[E]`, int64."""
        if split not in SPLIT_NAMES:
            raise ConfigError(f"split must be one of {', '.join(SPLIT_NAMES)}, got {split!r}")
        users, cuts, ends = (self._load(f"{split}_{name}") for name in ("users", "cuts", "ends"))
        return users, cuts, ends

    @cached_property
    def _item_keys(self) -> StringTable:
        return StringTable(self.path, "item_keys")

    @cached_property
    def _user_keys(self) -> StringTable:
        return StringTable(self.path, "user_keys")

    @cached_property
    def _item_index(self) -> KeyIndex:
        return KeyIndex(self._item_keys, *sorted_hashes(self._item_keys.tolist(), first=1))

    @cached_property
    def _user_index(self) -> KeyIndex:
        return KeyIndex(self._user_keys, *sorted_hashes(self._user_keys.tolist()))

    def _load(self, name: str) -> np.ndarray:
        return map_array(self.path / f"{name}.npy")
