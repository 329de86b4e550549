"""Feature schemas: all that encoding new items and users needs, without the training data.

A bundle keeps `features/items` and `features/users` with the schema and the vocabularies of the
features that the model uses; the arrays of the dataset's own items and users stay behind.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.data.features import SCHEMA, read_encoders
from crossbatch.models import FeatureTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SHOWN_VALUES = 100  # of a vocabulary, most frequent first


def copy_schema(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy schema and vocabularies of the named features; none if there are none."""
    if not names:
        return
    schema = json.loads((source / SCHEMA).read_text(encoding="utf-8"))
    target.mkdir(parents=True)
    kept = {name: schema[name] for name in names}
    (target / SCHEMA).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    for entry in kept.values():
        for path in sorted(source.glob(f"{entry['stem']}.vocabulary.*")):
            shutil.copyfile(path, target / path.name)


def read_schema(folder: Path) -> dict[str, Any]:
    """Return kind and size of each feature and its commonest values; empty without a folder."""
    if not (folder / SCHEMA).is_file():
        return {}
    schema = json.loads((folder / SCHEMA).read_text(encoding="utf-8"))
    encoders = read_encoders(folder)
    described = {}
    for name, entry in schema.items():
        vocabulary = encoders[name].vocabulary
        described[name] = {
            "encoder": entry["encoder"],
            "kind": entry["kind"],
            "num_values": entry["num_values"],
            "values": [] if vocabulary is None else vocabulary.head(SHOWN_VALUES).to_list(),
        }
    return described


def blank_tables(schema: Mapping[str, Any], rows: int = 1) -> dict[str, FeatureTable]:
    """Tables of the right kinds and widths that say nothing, to build a tower around."""
    tables = {}
    for name, entry in schema.items():
        kind, width = entry["kind"], entry["num_values"]
        shapes = {"categorical": (rows,), "multi_valued": (0,)}
        integer = kind in shapes
        values = np.zeros(shapes.get(kind, (rows, width)), dtype=np.int32 if integer else "f4")
        offsets = np.zeros(rows + 1, dtype=np.int64) if kind == "multi_valued" else None
        tables[name] = FeatureTable.from_arrays(kind, values, offsets, width if integer else 0)
    return tables
