"""Features of items, users and events: written by preparation, memory-mapped by the dataset.

`features/items/`, `features/users/` and `features/context/` hold arrays, `schema.json` and
vocabularies: all that is needed to encode new items, so that a bundle copies the folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import map_array, range_positions
from crossbatch.data.dataset.encoders import Encoded, Encoder, fit
from crossbatch.data.dataset.string_table import StringTable, write_strings
from crossbatch.data.dataset.tokens import tokenizer_checksum
from crossbatch.data.dataset.vectors import Vectors, write_vectors
from crossbatch.errors import DataError
from crossbatch.files import read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from crossbatch.data.readers.source import Column

SCHEMA = "schema.json"
TOKENIZER = ".tokenizer.json"  # after the stem of a feature
ENTRY_KEYS = {"stem", "encoder", "kind", "num_values", "settings"}


@dataclass(frozen=True, slots=True)
class Feature:
    """One column as arrays; R rows are items 0 … num_items (0 = padding), users, or interactions.

    Attributes:
        name: The column's name.
        kind: "categorical": `values` int32 `[R]`, 0 = unknown or missing; "multi_valued" (hashed
            text too): `values` int32, those of row r at `offsets[r]:offsets[r + 1]`; "tokens": the
            same, token ids of a text in their order; "numeric": `values` float32 `[R, 2]`,
            standardised value and missing flag; "dense": `values` float16 `[R, n]`.
        values: See `kind`.
        offsets: Shape `[R + 1]`, int64, for "multi_valued" and "tokens" only.
        num_values: Ids are below it; for "numeric" and "dense" the width of `values`.
        elsewhere: Given the id of a row beyond these, the feature that has it and the id of its
            first row; of the context of a dataset in shards.
    """

    name: str
    kind: str
    values: np.ndarray
    offsets: np.ndarray | None
    num_values: int
    elsewhere: Callable[[int], tuple[Feature, int]] | None = None


class _Folder:
    """A new folder of features; its first `padding` rows do not count as missing content."""

    def __init__(self, path: Path, padding: int) -> None:
        path.mkdir(parents=True)
        self._path, self._padding = path, padding
        self.schema: dict[str, Any] = {}
        self.summary: dict[str, dict[str, Any]] = {}

    @property
    def _stem(self) -> str:
        return f"{len(self.schema):02d}"  # a column's name need not be a file's name

    def add(self, name: str, encoder: Encoder, encoded: Encoded) -> None:
        """Write the arrays of a feature, and its vocabulary or tokenizer."""
        np.save(self._path / f"{self._stem}.npy", encoded.values)
        if encoded.offsets is not None:
            np.save(self._path / f"{self._stem}.offsets.npy", encoded.offsets)
        save_encoder(self._path, self._stem, encoder)
        self._describe(name, encoder, encoded.num_values, _has_value(encoded, encoder.kind))

    def add_vectors(self, vectors: Vectors, keys: pl.Series, known: np.ndarray | None) -> None:
        """Write precomputed vectors of items, over `known` ones of an earlier dataset."""
        present = write_vectors(self._path / f"{self._stem}.npy", keys, vectors, known)
        if not present[self._padding :].any():
            raise DataError(f"no item has a vector {vectors.name!r}: its keys are other ones")
        encoder = Encoder("dense", {"size": vectors.width, "name": vectors.name})
        self._describe(vectors.name, encoder, vectors.width, present)

    def _describe(self, name: str, encoder: Encoder, size: int, present: np.ndarray) -> None:
        coverage = float(present[self._padding :].mean()) if len(present) > self._padding else 0.0
        about = {"encoder": encoder.kind, "num_values": size, "coverage": round(coverage, 6)}
        self.summary[name] = about
        self.schema[name] = schema_entry(self._stem, encoder, size)

    def finish(self) -> dict[str, dict[str, Any]]:
        """Write the schema; return kind, size and share of rows with a value of each feature."""
        write_document(self._path / SCHEMA, self.schema, indent=2)
        return self.summary


def write_features(
    folder: Path,
    table: pl.DataFrame,
    columns: Sequence[Column],
    note: Callable[[str], None],
    *,
    padding: int = 0,
    vectors: Sequence[Vectors] = (),
) -> dict[str, dict[str, Any]]:
    """Fit an encoder to each column, write its arrays and state to a new folder.

    `table` has one row for each row of the features, null where there is no content, and their
    keys; its first `padding` rows do not count as missing content. `note` is told of values that
    count as missing. Precomputed `vectors` are further features, which the table does not hold.

    Returns:
        For each feature its kind, size, and the share of rows that have a value.

    Raises:
        DataError: If most values of a column cannot be of its kind.
    """
    if not columns and not vectors:
        return {}
    features = _Folder(folder, padding)
    for column in columns:
        series = table[column.name]
        encoder = fit(series, column)
        _note_unreadable(encoder, series, note)
        features.add(column.name, encoder, encoder.encode(series))
    for each in vectors:
        if each.name in features.schema:
            raise DataError(f"feature {each.name!r} is both a column and a file of vectors")
        features.add_vectors(each, table["key"], None)
    return features.finish()


def schema_entry(stem: str, encoder: Encoder, num_values: int) -> dict[str, Any]:
    """Return what the schema says of a feature."""
    return {
        "stem": stem,
        "encoder": encoder.kind,
        "kind": encoder.feature_kind,
        "num_values": num_values,
        "settings": encoder.settings,
    }


def _note_unreadable(encoder: Encoder, column: pl.Series, note: Callable[[str], None]) -> None:
    """Note the values that count as missing; refuse a column of them."""
    bad = encoder.unreadable(column)
    if not len(bad):
        return
    present = len(column) - column.null_count()
    text = f"{len(bad):,} of {present:,} values of {column.name!r} are not numbers"
    if 2 * len(bad) > present:
        raise DataError(
            f"{text}, such as {bad[0][:60]!r}: declare it as {column.name}:text or "
            f"{column.name}:categorical, or leave it out"
        )
    note(f"{text}, such as {bad[0][:60]!r}, and count as missing")


def extend_features(
    folder: Path,
    source: Path,
    table: pl.DataFrame,
    given: np.ndarray,
    note: Callable[[str], None],
    *,
    padding: int = 0,
    vectors: Sequence[Vectors] = (),
) -> dict[str, dict[str, Any]]:
    """Write the features of `source` to a new folder, with further rows and newer content.

    Ids of known values stay, values that were unknown get the ids after them. `table` has a row for
    each old row, then for each new one; it has the content of the rows `given` `[R]`, others keep
    theirs, or have none. The other arguments and the result are those of `write_features`.
    """
    schema, encoders, known = read_schema(source), read_encoders(source), read_features(source)
    newer = {each.name: each for each in vectors}
    for name in newer:
        if name not in known or known[name].kind != "dense":
            raise DataError(f"the dataset has no feature of vectors {name!r} to add to")
    if not schema:
        return {}
    features = _Folder(folder, padding)
    for name in schema:
        feature, encoder = known[name], encoders[name]
        if name in newer:
            features.add_vectors(newer[name], table["key"], feature.values)
            continue
        chosen, encoded = np.zeros_like(given), None
        if name in table.columns and given.any():
            column, chosen = table[name].filter(pl.Series(given)), given
            _note_unreadable(encoder, column, note)
            encoder = encoder.grown(column)
            encoded = encoder.encode(column)
        features.add(name, encoder, _overlaid(feature, encoded, chosen))
    return features.finish()


def _overlaid(known: Feature, newer: Encoded | None, chosen: np.ndarray) -> Encoded:
    """Rows of `newer` where `chosen` `[R]`, else those of `known`, else rows without a value."""
    if newer is not None and newer.values.shape[1:] != known.values.shape[1:]:
        raise DataError(
            f"feature {known.name!r} has {known.values.shape[1]} numbers a row in the dataset, "
            f"but {newer.values.shape[1]} in the new content"
        )
    num_values = known.num_values if newer is None else newer.num_values
    num_known = len(known.values) if known.offsets is None else len(known.offsets) - 1
    if known.offsets is None:
        values = np.zeros((len(chosen), *known.values.shape[1:]), dtype=known.values.dtype)
        if known.kind == "numeric":
            values[:, 1] = 1.0  # the flag that says it is missing
        values[:num_known] = known.values
        if newer is not None:
            values[chosen] = newer.values
        return Encoded(values, None, num_values)
    starts, ends = np.zeros((2, len(chosen)), dtype=np.int64)
    starts[:num_known], ends[:num_known] = known.offsets[:-1], known.offsets[1:]
    both = known.values
    if newer is not None and newer.offsets is not None:
        both = np.concatenate([both, newer.values])
        starts[chosen] = newer.offsets[:-1] + len(known.values)
        ends[chosen] = newer.offsets[1:] + len(known.values)
    positions, offsets = range_positions(starts, ends)
    return Encoded(both[positions], offsets, num_values)


def _has_value(encoded: Encoded, kind: str) -> np.ndarray:
    """Whether a row has a value.  `[R]`, bool."""
    if encoded.offsets is not None:
        return np.diff(encoded.offsets) > 0
    if kind == "numeric":
        return np.asarray(encoded.values[:, 1] == 0)
    return np.asarray((encoded.values != 0).reshape(len(encoded.values), -1).any(axis=1))


def save_encoder(folder: Path, stem: str, encoder: Encoder) -> None:
    """Write the vocabulary or the tokenizer of a feature, if it has one."""
    if encoder.vocabulary is not None:
        write_strings(folder, f"{stem}.vocabulary", encoder.vocabulary)
    if encoder.tokenizer is not None:
        (folder / f"{stem}{TOKENIZER}").write_bytes(encoder.tokenizer.encode())


def read_features(folder: Path, arrays: Path | None = None) -> dict[str, Feature]:
    """Return the features of a folder, memory-mapped; none if there is no folder.

    Their arrays may be in another folder than the schema.
    """
    arrays = arrays or folder
    return {
        name: Feature(
            name=name,
            kind=entry["kind"],
            values=map_array(arrays / f"{entry['stem']}.npy"),
            offsets=_offsets(arrays, entry["stem"]),
            num_values=entry["num_values"],
        )
        for name, entry in read_schema(folder).items()
    }


def read_encoders(folder: Path) -> dict[str, Encoder]:
    """Return the fitted encoders of a features folder, for items or users it has never seen."""
    encoders: dict[str, Encoder] = {}
    for name, entry in read_schema(folder).items():
        vocabulary = None
        if (folder / f"{entry['stem']}.vocabulary.bytes.npy").is_file():
            strings = StringTable(folder, f"{entry['stem']}.vocabulary").tolist()
            vocabulary = pl.Series(strings, dtype=pl.String)
        tokenizer = None
        if (path := folder / f"{entry['stem']}{TOKENIZER}").is_file():
            tokenizer = _tokenizer(path, entry["settings"])
        encoders[name] = Encoder(entry["encoder"], entry["settings"], vocabulary, tokenizer)
    return encoders


def _tokenizer(path: Path, settings: dict[str, Any]) -> str:
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): prepare the dataset again") from None
    limit = settings.get("max_tokens")
    if tokenizer_checksum(text) != settings.get("tokenizer") or type(limit) is not int or limit < 1:
        raise DataError(f"{path} is not the tokenizer of the feature: prepare the dataset again")
    return text


def encode_table(encoders: dict[str, Encoder], table: pl.DataFrame) -> dict[str, Feature]:
    """Encode new items or users, one a row; a column that `table` lacks counts as missing.

    Raises:
        DataError: If no column is a feature, or a value cannot be of its feature's kind.
    """
    unknown = sorted(set(table.columns) - set(encoders))
    if encoders and len(unknown) == len(table.columns):
        raise DataError(
            f"the table has columns {unknown}, the dataset's features are {sorted(encoders)}"
        )
    features = {}
    for name, encoder in encoders.items():
        empty = pl.Series(name, [None] * len(table), dtype=pl.String)
        series = table[name] if name in table.columns else empty
        if len(bad := encoder.unreadable(series)):
            raise DataError(
                f"feature {name!r} must be a number, got {bad[0][:60]!r}: leave it empty where it "
                "is unknown"
            )
        encoded = encoder.encode(series)
        features[name] = Feature(name, encoder.feature_kind, *encoded)
    return features


def _offsets(folder: Path, stem: str) -> np.ndarray | None:
    path = folder / f"{stem}.offsets.npy"
    return map_array(path) if path.is_file() else None


def read_schema(folder: Path, remedy: str = "prepare the dataset again") -> dict[str, Any]:
    """Return what a features folder says of its features by name; nothing if there is none."""
    path = folder / SCHEMA
    if not path.is_file():
        return {}
    schema = read_document(path, remedy)
    for name, entry in schema.items():
        if not isinstance(entry, dict) or not entry.keys() >= ENTRY_KEYS:
            raise DataError(f"{path} does not describe {name!r}: {remedy}")
        if not str(entry["stem"]).isalnum():  # it becomes a file's name
            raise DataError(f"{path} names the file {entry['stem']!r}: {remedy}")
    return schema
