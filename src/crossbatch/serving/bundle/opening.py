"""`open_bundle`: a bundle folder as a recommender, memory-mapped in milliseconds; its item arrays.

bundle = open_bundle("books.bundle")
bundle.recommend([["0439023483", "0439023491"]], k=20)
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from crossbatch.config import ModelConfig, Recipe
from crossbatch.data.dataset.arrays import map_array
from crossbatch.data.dataset.features import encode_table
from crossbatch.data.dataset.string_table import KeyIndex, Keys, sorted_hashes, write_strings
from crossbatch.files import read_document
from crossbatch.models.own_towers import CodeNotAllowedError
from crossbatch.remote import local_path
from crossbatch.retrieval import ExactIndex, IVFIndex
from crossbatch.serving.bundle import core_graph
from crossbatch.serving.bundle.graph import OwnUsers
from crossbatch.serving.bundle.manifest import REMEDY, BundleError, read_manifest, verify_files
from crossbatch.serving.bundle.model_files import (
    ID_TABLE,
    ITEM_TOWER,
    USER_TOWER,
    checked_schema,
    describe_features,
    load_user_tower,
    map_tensors,
    sample_tables,
    schema_encoders,
)
from crossbatch.serving.filters import FilterColumns
from crossbatch.serving.recommender import Recommender

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from crossbatch.data import Dataset
    from crossbatch.data.dataset.encoders import Encoder
    from crossbatch.serving.bundle.core_graph import GraphData

CONFIG, METRICS, CARD = "config.json", "metrics.json", "README.md"
ITEM_VECTORS, HISTORY_VECTORS, INDEX = "item_vectors.npy", "history_vectors.npy", "index.faiss"
USER_PROGRAM = "user_program"  # .json and .safetensors
USERS, ITEMS, CONTEXT = "features/users", "features/items", "features/context"
FILTERS = "filters.parquet"
KEYS, TITLES, COUNTS = "item_keys", "item_titles", "item_counts"
HASHES, ROWS = "item_key_hashes", "item_key_rows"
MAX_HISTORY = 1 << 16


class StoredCatalogue(Keys):
    """The items of a bundle folder, with the same methods as a `Dataset` has for its items."""

    def __init__(self, folder: Path) -> None:
        self.path, self.item_counts = folder, map_array(folder / f"{COUNTS}.npy")
        self.num_items = len(self._item_keys) - 1  # items are 1 … this
        _ = self._item_index, self.title_table  # broken ones are refused now

    @cached_property
    def _item_index(self) -> KeyIndex:
        hashes, rows = (map_array(self.path / f"{name}.npy") for name in (HASHES, ROWS))
        return KeyIndex(self._item_keys, hashes, rows)

    @property
    def is_consistent(self) -> bool:
        """Whether keys, titles, counts and the key index are consistent."""
        counts, n, titles = self.item_counts, self.num_items, self.title_table
        return (
            self._item_keys.is_valid
            and titles is not None
            and titles.is_valid
            and len(titles) == n + 1
            and counts.dtype == np.int64
            and counts.shape == (n + 1,)
            and bool((counts >= 0).all())
            and self._item_index.covers(first=1)
        )


class Bundle(Recommender):
    """An opened bundle: a `Recommender` with a folder, a version and metrics.

    Attributes:
        path: The folder.
        manifest: Its `bundle.json`.
        config: The model's part of the recipe.
        user_features: Kind, size and commonest values of each user feature, by name.
        context: The same of each context feature.
        request_features: Both.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest = path, manifest
        document = read_document(path / CONFIG, REMEDY)
        self.config: ModelConfig = Recipe.from_dict({"model": document["model"]}).model
        encoders = schema_encoders(path / USERS)
        self.user_features = describe_features(path / USERS, encoders)
        context_encoders = schema_encoders(path / CONTEXT)
        self.context = describe_features(path / CONTEXT, context_encoders)
        self.request_features = self.user_features | self.context
        if self.config.context == ("*",):  # of an earlier release
            self.config = replace(self.config, context=tuple(self.context))
        self.reads_ids = document.get("user_input") == "ids"  # a model of foreign code may
        item_vectors = _map_vectors(path / ITEM_VECTORS)
        history_vectors = self._history_vectors(item_vectors)
        length = document["history_length"]
        towers = self._load_users(history_vectors.shape[1], length)
        super().__init__(
            StoredCatalogue(path),
            towers,
            item_vectors=item_vectors,
            history_vectors=history_vectors,
            index=_open_index(path, item_vectors, manifest["index"]),
            history_length=length,
            user_encoders=encoders,
            filters=read_filters(path / FILTERS),
            context_encoders=context_encoders,
        )
        self._check_sizes()
        if not self._values_are_possible():
            raise self._inconsistent()

    def __repr__(self) -> str:
        about = f"{self.config.name}, {self.num_items:,} items, version {self.version}"
        return f"<Bundle {self.path}: {about}>"

    @property
    def name(self) -> str:
        """What the bundle is called."""
        return str(self.manifest["name"])

    @property
    def version(self) -> str:
        """A short hash of all that the bundle holds."""
        return str(self.manifest["checksum"])[:12]

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What training measured, as in a run's `result.json`."""
        return read_document(self.path / METRICS, REMEDY)

    @cached_property
    def item_encoders(self) -> dict[str, Encoder]:
        """The fitted encoders of the item features."""
        return schema_encoders(self.path / ITEMS)

    def item_state(self) -> dict[str, Tensor]:
        """Weights of the item tower, memory-mapped."""
        return map_tensors(self.path / ITEM_TOWER)

    def whole_state(self) -> dict[str, Tensor]:
        """Weights of both towers, by their names in the model; memory-mapped."""
        items = {f"item_tower.{name}": value for name, value in self.item_state().items()}
        return items | map_tensors(self.path / USER_TOWER)

    @property
    def program(self) -> GraphData | None:
        """The graph of the user side, of models that are not of a recipe's own towers."""
        stem = self.path / USER_PROGRAM
        return core_graph.load(stem) if stem.with_suffix(".json").is_file() else None

    def _load_users(self, width: int, history_length: int) -> Any:
        """What gives interests to history vectors of this width."""
        program = self.program
        if program is not None:
            graph = core_graph.CoreGraph(program, self.whole_state())
            return OwnUsers(graph, self.request_features, history_length, graph.block)
        features = sample_tables(self.request_features, rows=1)
        state = map_tensors(self.path / USER_TOWER)
        try:
            return load_user_tower(self.config, width, features, state)
        except CodeNotAllowedError as error:
            raise BundleError(f"{self.path} cannot be opened: {error}") from None

    def check_consistent(self) -> None:
        """Read every array once and raise `BundleError` if one refers outside of another.

        Checksums tell whether files changed since they were written; this also finds files that
        were forged together with their checksums.
        """
        assert isinstance(self.catalogue, StoredCatalogue)
        metrics = self.metrics.get("test", {})
        if not self.catalogue.is_consistent or not isinstance(metrics, dict):
            raise self._inconsistent()
        for encoders in (self.item_encoders, self.user_encoders, self.context_encoders):
            blank = pl.DataFrame(schema=dict.fromkeys(encoders, pl.String)).clear(n=1)
            encode_table(dict(encoders), blank)

    @property
    def stores_history(self) -> bool:
        """Whether what histories read of items is in a file of its own."""
        return (self.path / HISTORY_VECTORS).is_file()

    def _history_vectors(self, item_vectors: Tensor) -> Tensor:
        if self.stores_history:
            return _map_vectors(self.path / HISTORY_VECTORS)
        if self.config.history == "item_tower":
            return item_vectors
        return self.item_state()[ID_TABLE][: self.manifest["items"]["trained"] + 1]

    def _check_sizes(self) -> None:
        expected = self.manifest["items"]["count"]
        sizes = {
            "item vectors": self.num_items,
            "item keys": self.catalogue.num_items,
            "item counts": len(self.item_counts) - 1,
        }
        if self.filters is not None:
            sizes["rows of filter columns"] = len(self.filters.frame)
        if self.stores_history and not self.reads_ids:
            sizes["history vectors"] = len(self.history_vectors) - 1
        for part, size in sizes.items():
            if size != expected:
                raise BundleError(f"{self.path} has {size} {part} for {expected} items")

    def _values_are_possible(self) -> bool:
        """Whether the documents hold values of the right kinds and ranges."""
        origin, index, items = (self.manifest[name] for name in ("origin", "index", "items"))
        return (
            0 < items["trained"] <= items["count"]
            and type(self.history_length) is int
            and 0 < self.history_length <= MAX_HISTORY
            and isinstance(self.manifest["name"], str)
            and isinstance(origin.get("changes", []), list)
            and isinstance(index["asked"], str)
            and 0 <= index["target"] <= 1
            and set(self.config.item_features) <= set(checked_schema(self.path / ITEMS))
            and set(self.config.user_features) <= set(self.user_features)
            and set(self.config.context) <= set(self.context)
        )

    def _inconsistent(self) -> BundleError:
        return BundleError(f"{self.path} is inconsistent: {REMEDY}")


def open_bundle(path: Path | str, *, verify: bool = True) -> Bundle:
    """Open a bundle folder; nothing in it is ever unpickled or run.

    Args:
        path: The folder, or its URL in an object store.
        verify: Whether the large arrays are compared with their checksums and with each other too;
            their sizes and every smaller file always are.

    Raises:
        BundleError: If it is not a bundle, incomplete, altered, or of another format version.
    """
    folder = local_path(path)
    manifest = read_manifest(folder)
    try:
        verify_files(folder, manifest, everything=verify)
        bundle = Bundle(folder, manifest)
        if verify:
            bundle.check_consistent()
        return bundle
    except BundleError:
        raise
    except Exception as error:  # forged files can provoke any exception
        raise BundleError(f"{folder} cannot be opened ({error}): {REMEDY}") from error


def _open_index(path: Path, vectors: Tensor, facts: dict[str, Any]) -> ExactIndex | IVFIndex:
    if facts["name"] == "exact":
        return ExactIndex(vectors)
    try:
        return IVFIndex.load(path / INDEX, vectors, probes=facts["probes"])
    except ImportError as error:
        raise BundleError(f"{path} has an approximate index: {error}") from None


def read_filters(path: Path) -> FilterColumns | None:
    """The filter columns of a bundle, if it has any."""
    if not path.is_file():
        return None
    try:
        return FilterColumns(pl.read_parquet(path, use_statistics=False, glob=False))
    except pl.exceptions.PanicException as error:  # no `Exception`
        raise BundleError(f"{path} cannot be read ({error}): {REMEDY}") from None


def _map_vectors(path: Path) -> Tensor:
    # copy-on-write: torch wants memory that it could write to, the file must never change
    array = np.load(path, mmap_mode="c").view(np.ndarray)
    if array.dtype != np.float32 or array.ndim != 2:
        raise BundleError(f"{path} must hold float32 vectors, got {array.dtype} {array.shape}")
    return torch.from_numpy(array)


def write_catalogue(
    folder: Path, keys: Sequence[str], titles: Sequence[str], counts: np.ndarray
) -> None:
    """Write what `StoredCatalogue` reads: of items 0 … N; titles are empty where there is none."""
    write_strings(folder, KEYS, pl.Series(keys, dtype=pl.String))
    write_strings(folder, TITLES, pl.Series(titles, dtype=pl.String))
    np.save(folder / f"{COUNTS}.npy", np.asarray(counts, dtype=np.int64))
    hashes, rows = sorted_hashes(keys, first=1)
    np.save(folder / f"{HASHES}.npy", hashes)
    np.save(folder / f"{ROWS}.npy", rows)


def all_items(catalogue: Dataset | StoredCatalogue) -> tuple[list[str], list[str]]:
    """Keys and titles of items 0 … N; a title that is only the key is left empty."""
    ids = range(catalogue.num_items + 1)
    keys, titles = catalogue.item_keys(ids), catalogue.item_titles(ids)
    return keys, [title if title != key else "" for key, title in zip(keys, titles, strict=True)]
