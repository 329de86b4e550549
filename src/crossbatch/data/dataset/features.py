"""Features of items and users: written by preparation, memory-mapped by the dataset.

`features/items/` and `features/users/` hold arrays, `schema.json` and vocabularies: all that is
needed to encode new items, so that a bundle copies the folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import map_array
from crossbatch.data.dataset.encoders import Encoder, fit
from crossbatch.data.dataset.string_table import StringTable, write_strings
from crossbatch.errors import DataError
from crossbatch.files import read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.data.readers.source import Column

SCHEMA = "schema.json"
ENTRY_KEYS = {"stem", "encoder", "kind", "num_values", "settings"}


@dataclass(frozen=True, slots=True)
class Feature:
    """One content column as arrays; R rows are items 0 … num_items (0 = padding), or users.

    Attributes:
        name: The column's name.
        kind: "categorical": `values` int32 `[R]`, 0 = unknown or missing; "multi_valued" (hashed
            text too): `values` int32, those of row r at `offsets[r]:offsets[r + 1]`; "numeric":
            `values` float32 `[R, 2]`, standardised value and missing flag; "dense": `values`
            float16 `[R, n]`.
        values: See `kind`.
        offsets: Shape `[R + 1]`, int64, for "multi_valued" only.
        num_values: Ids are below it; for "numeric" and "dense" the width of `values`.
    """

    name: str
    kind: str
    values: np.ndarray
    offsets: np.ndarray | None
    num_values: int


def write_features(
    folder: Path, table: pl.DataFrame, columns: Sequence[Column], *, padding: int = 0
) -> dict[str, dict[str, Any]]:
    """Fit an encoder to each column, write its arrays and state to a new folder.

    `table` has one row for each row of the features, null where there is no content; its first
    `padding` rows do not count as missing content.

    Returns:
        For each feature its kind, size, and the share of rows that have a value.
    """
    folder.mkdir(parents=True)
    schema: dict[str, Any] = {}
    summary: dict[str, dict[str, Any]] = {}
    for number, column in enumerate(columns):
        series = table[column.name]
        rows = series[padding:]
        encoder = fit(series, column)
        encoded = encoder.encode(series)
        stem = f"{number:02d}"  # a column's name need not be a file's name
        np.save(folder / f"{stem}.npy", encoded.values)
        if encoded.offsets is not None:
            np.save(folder / f"{stem}.offsets.npy", encoded.offsets)
        if encoder.vocabulary is not None:
            write_strings(folder, f"{stem}.vocabulary", encoder.vocabulary)
        schema[column.name] = {
            "stem": stem,
            "encoder": column.kind,
            "kind": encoder.feature_kind,
            "num_values": encoded.num_values,
            "settings": encoder.settings,
        }
        summary[column.name] = {
            "encoder": column.kind,
            "num_values": encoded.num_values,
            "coverage": round(1.0 - rows.null_count() / max(len(rows), 1), 6),
        }
    write_document(folder / SCHEMA, schema, indent=2)
    return summary


def read_features(folder: Path) -> dict[str, Feature]:
    """Return the features of a folder, memory-mapped; none if there is no folder."""
    return {
        name: Feature(
            name=name,
            kind=entry["kind"],
            values=map_array(folder / f"{entry['stem']}.npy"),
            offsets=_offsets(folder, entry["stem"]),
            num_values=entry["num_values"],
        )
        for name, entry in _schema(folder).items()
    }


def read_encoders(folder: Path) -> dict[str, Encoder]:
    """Return the fitted encoders of a features folder, for items or users it has never seen."""
    encoders: dict[str, Encoder] = {}
    for name, entry in _schema(folder).items():
        vocabulary = None
        if (folder / f"{entry['stem']}.vocabulary.bytes.npy").is_file():
            strings = StringTable(folder, f"{entry['stem']}.vocabulary").tolist()
            vocabulary = pl.Series(strings, dtype=pl.String)
        encoders[name] = Encoder(entry["encoder"], entry["settings"], vocabulary)
    return encoders


def encode_table(encoders: dict[str, Encoder], table: pl.DataFrame) -> dict[str, Feature]:
    """Encode new items or users, one a row; a column that `table` lacks counts as missing."""
    unknown = sorted(set(table.columns) - set(encoders))
    if encoders and len(unknown) == len(table.columns):
        raise DataError(
            f"the table has columns {unknown}, the dataset's features are {sorted(encoders)}"
        )
    features = {}
    for name, encoder in encoders.items():
        empty = pl.Series(name, [None] * len(table), dtype=pl.String)
        series = table[name] if name in table.columns else empty
        encoded = encoder.encode(series)
        features[name] = Feature(name, encoder.feature_kind, *encoded)
    return features


def _offsets(folder: Path, stem: str) -> np.ndarray | None:
    path = folder / f"{stem}.offsets.npy"
    return map_array(path) if path.is_file() else None


def _schema(folder: Path) -> dict[str, Any]:
    path = folder / SCHEMA
    if not path.is_file():
        return {}
    schema = read_document(path, "prepare the dataset again")
    for name, entry in schema.items():
        if not isinstance(entry, dict) or not entry.keys() >= ENTRY_KEYS:
            raise DataError(f"{path} does not describe {name!r}: prepare the dataset again")
        if not str(entry["stem"]).isalnum():  # it becomes a file's name
            raise DataError(f"{path} names the file {entry['stem']!r}: prepare the dataset again")
    return schema
