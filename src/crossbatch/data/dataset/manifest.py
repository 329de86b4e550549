"""The manifest of a dataset folder, and the check that its arrays fit together.

The manifest says what the folder holds, with the checksum of every file.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.data.dataset.samples import Draw, Events
from crossbatch.data.dataset.string_table import StringTable
from crossbatch.errors import DataError
from crossbatch.files import (
    file_checksum,
    files_below,
    is_as_written,
    listed_file,
    read_document,
    seal_is_broken,
    sealed,
    write_document,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from crossbatch.data.dataset.features import Feature
    from crossbatch.data.dataset.memory_mapped import Dataset
    from crossbatch.data.dataset.shards import Shard

FORMAT_VERSION = 1
SHARDS_VERSION = 2  # of a dataset in shards, which earlier releases cannot read
MANIFEST = "manifest.json"
PIECE = 1 << 16  # rows that are checked at once


def write_manifest(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Add the format version and the checksum of every file, write `manifest.json`, return it."""
    version = SHARDS_VERSION if "shards" in manifest else FORMAT_VERSION
    files = {
        name: file_checksum(path)
        for name, path in files_below(folder).items()
        if path.name != MANIFEST
    }
    whole = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    full = sealed({"format_version": version, **manifest, "checksum": whole, "files": files})
    write_document(folder / MANIFEST, full, indent=2)
    return full


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a dataset folder; refuse a changed one or another version."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise DataError(
            f"{folder} is not a dataset folder (no {MANIFEST}): "
            "make one with `crossbatch prepare` or `crossbatch synth`"
        )
    manifest = read_document(path, "prepare the dataset again")
    version = manifest.get("format_version")
    if version not in (FORMAT_VERSION, SHARDS_VERSION):
        raise DataError(
            f"{folder} has format version {version}, this release reads {FORMAT_VERSION} and "
            f"{SHARDS_VERSION}: prepare the dataset again"
        )
    if seal_is_broken(manifest):
        raise DataError(f"{path} was changed: prepare the dataset again")
    return manifest


def check_listed(folder: Path, name: str, checksum: str) -> None:
    """Raise `DataError` unless a file of a dataset is as its manifest says."""
    path = listed_file(folder, name)
    if path is None:
        raise DataError(f"{folder} lists {name!r}, which is no file of the dataset")
    if not is_as_written(path, checksum):
        raise DataError(f"{path} is missing or was changed: prepare the dataset again")


@contextmanager
def _contradictions() -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:  # a wrong kind of array
        raise DataError(f"the dataset contradicts itself ({error}): prepare it again") from error


@_contradictions()
def check_shard(dataset: Dataset, shard: Shard, entry: Mapping[str, int]) -> None:
    """Raise `DataError` unless a shard fits its dataset and its entry in the manifest."""
    events, users, n = shard.events, shard.users, len(shard.events.items)
    _require(_within(users, 0, dataset.num_users - 1), "users of a shard are out of range")
    _require(bool((np.diff(users) > 0).all()), "users of a shard do not ascend")
    _check_events(events, len(users), dataset.num_items)
    _require(bool((np.diff(events.offsets) > 1).all()), "training parts are too short")
    _require(shard.context.keys() == dataset.context_features.keys(), "context differs")
    for feature in shard.context.values():
        _check_feature(feature, n)
    samples = shard.training.samples(Draw(), 0).with_targets()
    found = {
        "users": len(samples.users),
        "interactions": n,
        "samples": samples.count(),
        "weight": int(samples.totals.sum()),
    }
    _require(found == entry, "a shard does not have the samples that the manifest says")


def _check_events(events: Events, num_users: int, num_items: int) -> None:
    offsets, n = events.offsets, len(events.items)
    _require(_integers(offsets) and len(offsets) == num_users + 1, "offsets do not fit the users")
    _require(_ascending(offsets, n), "offsets do not rise from 0 to the number of items")
    _require(_integers(events.times) and len(events.times) == n, "times do not fit the items")
    _require(_within(events.items, 1, num_items), "items hold ids out of range")
    weights = events.weight_offsets
    if weights is not None:
        fit = _integers(weights) and len(weights) == n + 1 and weights[0] == 0
        _require(fit and bool((np.diff(weights) >= 0).all()), "weights do not fit the items")
    if events.shown is not None:
        shown, bounds = events.shown
        fit = _integers(bounds) and len(bounds) == n + 1 and _ascending(bounds, len(shown))
        _require(fit and _within(shown, 1, num_items), "impressions do not fit the items")
    places = events.session_places
    if places is not None:
        fit = _within(places, 0, n) and len(places) == n
        _require(fit and _inside_users(places, offsets), "sessions do not fit the items")


@_contradictions()
def check_consistency(dataset: Dataset) -> None:
    """Raise `DataError` at the first array that does not fit the others.

    Checksums show that files are as they were written; this check also covers a dataset that was
    written by a faulty or hostile program. Shards are checked by `check_shard`.
    """
    num_items, num_users, n = dataset.num_items, dataset.num_users, len(dataset.items)
    _require(num_items > 0 and num_users > 0, "the counts are not positive")
    offsets = dataset.offsets
    _check_events(dataset.events, num_users, num_items)
    for name, values in (("item_counts", dataset.item_counts), *dataset.stored_laws.items()):
        _require(values.shape == (num_items + 1,), f"{name} do not fit the items")
        _require(_finite(values) and bool((values >= 0).all()), f"{name} are no counts or shares")
    if dataset.shards is None:
        _check_training(dataset)
    _check_keys(dataset)
    for split in ("valid", "test"):
        users, cuts, ends = dataset.part(split)
        fit = all(map(_integers, (cuts, ends))) and users.shape == cuts.shape == ends.shape
        _require(fit, f"{split} arrays differ in length")
        _require(_within(users, 0, num_users - 1), f"{split} users are out of range")
        inside = (offsets[users] <= cuts) & (cuts <= ends) & (ends <= offsets[users + 1])
        _require(bool(inside.all()), f"{split} samples reach into other users")
    for features, rows in (
        (dataset.item_features, num_items + 1),
        (dataset.user_features, num_users),
        (dataset.context_features, n),
    ):
        for feature in features.values():
            _check_feature(feature, rows)


def _inside_users(places: np.ndarray, offsets: np.ndarray) -> bool:
    """Whether no session reaches into another user."""
    starts = np.repeat(offsets[:-1], np.diff(offsets))
    return bool((np.arange(len(places)) - places >= starts).all())


def _check_training(dataset: Dataset) -> None:
    users, ends = dataset.training_arrays()
    fit = _integers(ends) and users.shape == ends.shape and len(users) > 0
    _require(fit, "training arrays differ in length")
    _require(_within(users, 0, dataset.num_users - 1), "training users are out of range")
    starts, longest = dataset.offsets[users], dataset.offsets[users + 1]
    _require(bool((np.diff(users) > 0).all()), "training users do not ascend")
    fit = (ends - starts > 1) & (ends <= longest)
    _require(bool(fit.all()), "training parts are out of range")


def _check_keys(dataset: Dataset) -> None:
    item_rows = dataset.num_items + 1
    for name, rows in (("item", item_rows), ("user", dataset.num_users)):
        keys = StringTable(dataset.path, f"{name}_keys")
        _require(keys.is_valid and len(keys) == rows, f"{name} keys do not fit")
    titles = dataset.title_table
    fit = titles is None or (titles.is_valid and len(titles) == item_rows)
    _require(fit, "item titles do not fit")


def _check_feature(feature: Feature, rows: int) -> None:
    name, values, offsets = feature.name, feature.values, feature.offsets
    if feature.kind in ("numeric", "dense"):
        fits = values.shape == (rows, feature.num_values) and _finite(values)
        _require(fits, f"feature {name!r} does not fit")
        return
    _require(_within(values, 0, feature.num_values - 1), f"feature {name!r} is out of range")
    if offsets is None:
        _require(len(values) == rows, f"feature {name!r} does not fit its rows")
    else:
        fits = _integers(offsets) and len(offsets) == rows + 1 and _ascending(offsets, len(values))
        _require(fits, f"feature {name!r} does not fit its rows")


def _ascending(offsets: np.ndarray, end: int) -> bool:
    return offsets[0] == 0 and offsets[-1] == end and bool((np.diff(offsets) >= 0).all())


def _within(values: np.ndarray, low: int, high: int) -> bool:
    """Whether the values are integers in low … high."""
    if not _integers(values):
        return False
    return not len(values) or (values.min() >= low and values.max() <= high)


def _finite(values: np.ndarray) -> bool:
    # In pieces: vectors of a whole catalogue need not fit in memory.
    return np.issubdtype(values.dtype, np.number) and all(
        bool(np.isfinite(values[first : first + PIECE]).all())
        for first in range(0, len(values), PIECE)
    )


def _integers(values: np.ndarray) -> bool:
    return values.ndim == 1 and np.issubdtype(values.dtype, np.integer)


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise DataError(f"the dataset contradicts itself ({what}): prepare it again")
