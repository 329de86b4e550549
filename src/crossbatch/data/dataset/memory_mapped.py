"""A prepared dataset, memory-mapped: it opens in milliseconds, whatever its size.

dataset = open_dataset("books")
for batch in dataset.batches(128, seed=19): ...      # batch.history [B, L], batch.item_ids [B]
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.data.dataset.arrays import map_array, range_positions
from crossbatch.data.dataset.batches import (
    Batch,
    EvalBatch,
    TrainingPart,
    eval_batches,
    training_batches,
)
from crossbatch.data.dataset.features import Feature, encode_table, read_encoders, read_features
from crossbatch.data.dataset.manifest import check_consistency, read_manifest
from crossbatch.data.dataset.string_table import KeyIndex, StringTable, sorted_hashes
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import is_as_written, listed_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import polars as pl

SPLIT_NAMES = ("valid", "test")
CHOICE_SEED = 0  # of the samples that `max_users` chooses, for every dataset and every run


def open_dataset(path: Path | str) -> Dataset:
    """Open a folder that `crossbatch prepare` or `crossbatch synth` wrote."""
    return Dataset(Path(path))


class Dataset:
    """A dataset folder.  Item ids are 1 … `num_items`, 0 is padding; user ids start at 0.

    Args:
        path: The folder.

    Raises:
        DataError: If it is no dataset, incomplete, or of another format version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: dict[str, Any] = read_manifest(path)
        try:
            counts = self.manifest["counts"]
            self.num_items, self.num_users = int(counts["items"]), int(counts["users"])
            self.eligible_samples = int(counts["eligible_samples"])
            self.min_history = int(self.manifest["options"]["min_history"])
            self._files = dict(self.manifest["files"].items())
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise DataError(f"{path} has a broken manifest ({error}): prepare it again") from None
        self.offsets = self._load("offsets")  # [num_users + 1] int64
        self.items = self._load("items")  # [n] int32, sequences end to end
        self.times = self._load("times")  # [n] int64, microseconds
        self.item_counts = self._load("item_counts")  # [num_items + 1] int64
        self.sampler_law = self._load("sampler_law")  # [num_items + 1] float64

    def batches(
        self,
        batch_size: int,
        *,
        seed: int,
        history_length: int = 20,
        start: int = 0,
        later: bool = False,
    ) -> Iterator[Batch]:
        """Yield training batches without end.

        Args:
            batch_size: B, distinct users in a batch.
            seed: Batch number i depends on the seed and i alone.
            history_length: L, the most recent items that are shown.
            start: Number of the first batch: a run that stopped after n batches resumes at n.
            later: Whether to add the items that came after each positive, `batch.later`.
        """
        for name, size in (("batch_size", batch_size), ("history_length", history_length)):
            if size < 1:
                raise ConfigError(f"{name} must be at least 1, got {size}")
        users = len(self.train_users)
        if batch_size > users:
            raise ConfigError(
                f"batch_size must not exceed the {users:,} training users, got {batch_size:,}"
            )
        if start < 0 or seed < 0:
            raise ConfigError(f"seed and start must not be negative, got {seed} and {start}")
        return training_batches(self._training, batch_size, seed, history_length, start, later)

    def eval_batches(
        self,
        split: str,
        *,
        batch_size: int = 1024,
        history_length: int = 20,
        max_users: int | None = None,
    ) -> Iterator[EvalBatch]:
        """Yield the samples of "valid" or "test" in stored order, each with all its targets.

        Args:
            split: "valid" or "test".
            batch_size: Samples in a batch; the last may be short.
            history_length: L, the most recent items that are shown.
            max_users: At most so many samples: a random choice, the same one at every call.
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
        )

    def train_sequences(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the training parts of all users: offsets int64 `[U + 1]` and item ids, CSR."""
        part = self._training
        positions, offsets = range_positions(part.starts, part.ends)
        return offsets, self.items[positions]

    @property
    def train_users(self) -> np.ndarray:
        """Ids of the training users, in the order of `train_sequences`.  Shape `[U]`."""
        return self._training.users

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
        """Return the training users and where the training part of each ends.  `[T]`, int64."""
        return np.array(self._load("train_users")), np.array(self._load("train_ends"))

    @cached_property
    def _training(self) -> TrainingPart:
        users, ends = self.training_arrays()
        return TrainingPart(
            items=self.items,
            users=users,
            starts=self.offsets[users],
            ends=ends,
            min_history=self.min_history,
        )

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
