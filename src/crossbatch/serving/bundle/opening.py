"""Bundles: one folder with all that answering needs, opened by memory map in milliseconds.

bundle = open_bundle("books.bundle")
bundle.recommend([["0439023483", "0439023491"]], k=20)
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from crossbatch.config import Recipe
from crossbatch.data.dataset.features import encode_table
from crossbatch.files import read_document
from crossbatch.retrieval import ExactIndex, IVFIndex
from crossbatch.serving.bundle import towers as stored_towers
from crossbatch.serving.bundle.catalogue import StoredCatalogue
from crossbatch.serving.bundle.feature_schema import (
    described,
    read_schema,
    sample_tables,
    schema_encoders,
)
from crossbatch.serving.bundle.manifest import BundleError, read_manifest, verify_files
from crossbatch.serving.recommender import Recommender

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.config import ModelConfig

CONFIG, METRICS, CARD = "config.json", "metrics.json", "README.md"
ITEM_VECTORS, HISTORY_VECTORS, INDEX = "item_vectors.npy", "history_vectors.npy", "index.faiss"
USERS, ITEMS = "features/users", "features/items"
MOST_HISTORY = 1 << 16


class Bundle(Recommender):
    """An opened bundle: a `Recommender` with a folder, a version and metrics.

    Attributes:
        path: The folder.
        manifest: Its `bundle.json`.
        config: The model's part of the recipe.
        user_features: Kind, size and commonest values of each user feature, by name.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest = path, manifest
        document = read_document(path / CONFIG, "export anew")
        self.config: ModelConfig = Recipe.from_dict({"model": document["model"]}).model
        encoders = schema_encoders(path / USERS)
        self.user_features = described(read_schema(path / USERS), encoders)
        item_vectors = map_array(path / ITEM_VECTORS)
        history_vectors = self._history_vectors(item_vectors)
        towers = stored_towers.user_side(
            self.config,
            history_vectors.shape[1],
            sample_tables(self.user_features, rows=1),
            stored_towers.map_tensors(path / stored_towers.USER_TOWER),
        )
        super().__init__(
            StoredCatalogue(path),
            towers,
            item_vectors=item_vectors,
            history_vectors=history_vectors,
            index=_index(path, item_vectors, manifest["index"]),
            history_length=document["history_length"],
            user_encoders=encoders,
        )
        self._check_sizes()

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
        return read_document(self.path / METRICS, "export anew")

    def item_state(self) -> dict[str, Tensor]:
        """Weights of the item tower, memory-mapped."""
        return stored_towers.map_tensors(self.path / stored_towers.ITEM_TOWER)

    def _history_vectors(self, item_vectors: Tensor) -> Tensor:
        if self.config.history == "item_tower":
            return item_vectors
        if self.config.history == "content":
            return map_array(self.path / HISTORY_VECTORS)
        return self.item_state()[stored_towers.ID_TABLE][: self.manifest["items"]["trained"] + 1]

    def _check_sizes(self) -> None:
        """Refuse parts that were never one bundle."""
        expected = self.manifest["items"]["count"]
        sizes = {
            "item vectors": self.num_items,
            "item keys": self.catalogue.num_items,
            "item counts": len(self.item_counts) - 1,
        }
        if self.config.history == "content":
            sizes["history vectors"] = len(self.history_vectors) - 1
        for part, size in sizes.items():
            if size != expected:
                raise BundleError(f"{self.path} has {size} {part} for {expected} items")
        if not self._facts_fit(self.manifest["items"]["trained"], expected):
            raise BundleError(f"{self.path} contradicts itself: export anew")

    def _facts_fit(self, trained: int, count: int) -> bool:
        """Whether what documents say is of the kind that they would say."""
        origin, index = self.manifest["origin"], self.manifest["index"]
        return (
            0 < trained <= count
            and type(self.history_length) is int
            and 0 < self.history_length <= MOST_HISTORY
            and isinstance(self.manifest["name"], str)
            and isinstance(origin.get("changes", []), list)
            and isinstance(index["asked"], str)
            and 0 <= index["target"] <= 1
            and set(self.config.item_features) <= set(read_schema(self.path / ITEMS))
            and set(self.config.user_features) <= set(self.user_features)
        )

    def check_sound(self) -> None:
        """Read every array once: after this no index of one points outside of another.

        Checksums tell whether files changed since they were written; this tells whether whoever
        wrote them meant well.
        """
        assert isinstance(self.catalogue, StoredCatalogue)
        metrics = self.metrics.get("test", {})
        if not self.catalogue.is_sound or not isinstance(metrics, dict):
            raise BundleError(f"{self.path} contradicts itself: export anew")
        for encoders in (schema_encoders(self.path / ITEMS), self.user_encoders):
            blank = pl.DataFrame(schema=dict.fromkeys(encoders, pl.String)).clear(n=1)
            encode_table(dict(encoders), blank)


def _index(path: Path, vectors: Tensor, facts: dict[str, Any]) -> ExactIndex | IVFIndex:
    if facts["name"] == "exact":
        return ExactIndex(vectors)
    try:
        return IVFIndex.load(path / INDEX, vectors, probes=facts["probes"])
    except ImportError as error:
        raise BundleError(f"{path} has an approximate index: {error}") from None


def open_bundle(path: Path | str, *, verify: bool = True) -> Bundle:
    """Open a bundle folder; nothing in it is ever unpickled or run.

    Args:
        path: The folder.
        verify: Whether the large arrays are compared with their checksums and with each other too;
            their sizes and every smaller file always are.

    Raises:
        BundleError: If it is not a bundle, incomplete, altered, or of another format version.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    try:
        verify_files(folder, manifest, everything=verify)
        bundle = Bundle(folder, manifest)
        if verify:
            bundle.check_sound()
        return bundle
    except BundleError:
        raise
    except Exception as error:  # whatever a foreign file provokes is its fault, not ours
        raise BundleError(f"{folder} cannot be opened ({error}): export anew") from error


def map_array(path: Path) -> Tensor:
    """Vectors as a tensor over their memory map."""
    # copy-on-write: torch wants memory that it could write to, the file must never change
    array = np.load(path, mmap_mode="c").view(np.ndarray)
    if array.dtype != np.float32 or array.ndim != 2:
        raise BundleError(f"{path} must hold float32 vectors, got {array.dtype} {array.shape}")
    return torch.from_numpy(array)
