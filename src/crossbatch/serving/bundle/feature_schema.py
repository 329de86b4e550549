"""Feature schemas of a bundle: how new items and users are encoded, without the training data.

A bundle keeps `features/items` and `features/users` with the schema and the vocabularies of the
features that the model uses, but not the feature values of the dataset's items and users.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.data.dataset.features import SCHEMA, read_encoders
from crossbatch.files import read_document, write_document
from crossbatch.models import FeatureTable
from crossbatch.serving.bundle.manifest import REMEDY, BundleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crossbatch.data.dataset.encoders import Encoder

SHOWN_VALUES = 100  # of a vocabulary, most frequent first
MAX_VALUES = 1 << 24  # of a feature: a vocabulary, or the width of a vector


def copy_schema(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy schema and vocabularies of the named features; none if there are none."""
    if not names:
        return
    schema = json.loads((source / SCHEMA).read_text(encoding="utf-8"))
    target.mkdir(parents=True)
    kept = {name: schema[name] for name in names}
    write_document(target / SCHEMA, kept)
    for entry in kept.values():
        for path in sorted(source.glob(f"{entry['stem']}.vocabulary.*")):
            shutil.copyfile(path, target / path.name)


def read_schema(folder: Path) -> dict[str, Any]:
    """Return kind and size of each feature, as stored; empty without a folder."""
    if not (folder / SCHEMA).is_file():
        return {}
    schema = read_document(folder / SCHEMA, REMEDY)
    for entry in schema.values():
        if not entry["stem"].isalnum():
            raise BundleError(f"{folder / SCHEMA} names the file {entry['stem']!r}: {REMEDY}")
        if type(entry["num_values"]) is not int or not 0 < entry["num_values"] <= MAX_VALUES:
            raise BundleError(f"{folder / SCHEMA} has features of impossible sizes: {REMEDY}")
    return schema


def schema_encoders(folder: Path) -> dict[str, Encoder]:
    """Return the fitted encoders of a bundle's features."""
    return read_encoders(folder) if read_schema(folder) else {}


def describe_features(schema: Mapping[str, Any], encoders: Mapping[str, Encoder]) -> dict[str, Any]:
    """Return kind, size and commonest values of each feature."""
    facts = {}
    for name, entry in schema.items():
        vocabulary = encoders[name].vocabulary
        facts[name] = {
            "encoder": entry["encoder"],
            "kind": entry["kind"],
            "num_values": entry["num_values"],
            "values": [] if vocabulary is None else vocabulary.head(SHOWN_VALUES).to_list(),
        }
    return facts


def sample_tables(schema: Mapping[str, Any], rows: int) -> dict[str, FeatureTable]:
    """Placeholder features of the right kinds and widths, to build or trace a tower with."""
    return {name: _sample(entry, rows) for name, entry in schema.items()}


def _sample(entry: dict[str, Any], rows: int) -> FeatureTable:
    kind, size = entry["kind"], entry["num_values"]
    if kind in ("numeric", "dense"):
        return FeatureTable.from_arrays(kind, np.ones((rows, size), dtype=np.float32))
    values = np.arange(rows, dtype=np.int64) % size
    offsets = np.arange(rows + 1, dtype=np.int64) if kind == "multi_valued" else None
    return FeatureTable.from_arrays(kind, values, offsets, size)
