"""Encoders of content columns: fitted once on a dataset, then able to encode new items."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import offsets_of
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from crossbatch.data.readers.source import Column

UNKNOWN = 0
LARGEST, LARGEST_HALF = float(np.finfo(np.float32).max), float(np.finfo(np.float16).max)
TEXT_BUCKETS = 1 << 15


class Encoded(NamedTuple):
    """A column as arrays, in the layout of `Feature`."""

    values: np.ndarray
    offsets: np.ndarray | None
    num_values: int


class Encoder(ABC):
    """Turns a column into arrays; all it has learned is in its settings and its vocabulary.

    Args:
        settings: Plain values, stored as JSON.
        vocabulary: Known values, for encoders that have one.
    """

    feature_kind: ClassVar[str]  # the layout of the arrays, see `Feature.kind`

    def __init__(self, settings: dict[str, Any], vocabulary: pl.Series | None = None) -> None:
        self.settings, self.vocabulary = settings, vocabulary

    @classmethod
    @abstractmethod
    def fit(cls, column: pl.Series, spec: Column) -> Self:
        """Learn vocabulary or statistics from the items (or users) of the dataset."""

    @abstractmethod
    def encode(self, column: pl.Series) -> Encoded:
        """Encode a column, of the dataset or of new items.  Shape `[R]`."""

    def known_values(self) -> pl.Series:
        """Return the vocabulary, which an encoder that needs one must have."""
        if self.vocabulary is None:
            raise DataError("a stored feature lost its vocabulary: prepare the dataset again")
        return self.vocabulary


class Categorical(Encoder):
    """One value a row.  Ids from 1 by descending frequency; 0 is unknown or missing."""

    feature_kind: ClassVar[str] = "categorical"

    @classmethod
    def fit(cls, column: pl.Series, spec: Column) -> Self:  # noqa: ARG003
        """Learn the vocabulary."""
        return cls({}, _vocabulary(_clean(column)))

    def encode(self, column: pl.Series) -> Encoded:
        """Return ids.  Values `[R]`, int32."""
        vocabulary = self.known_values()
        ids = _look_up(_clean(column), vocabulary).to_numpy().astype(np.int32)
        return Encoded(ids, None, len(vocabulary) + 1)


class MultiValued(Encoder):
    """Any number of values a row; those outside the vocabulary are left out."""

    feature_kind: ClassVar[str] = "multi_valued"

    @classmethod
    def fit(cls, column: pl.Series, spec: Column) -> Self:
        """Learn the vocabulary of single values."""
        settings = {"separator": spec.separator}
        return cls(settings, _vocabulary(_exploded(column, spec.separator)["value"]))

    def encode(self, column: pl.Series) -> Encoded:
        """Return bags of ids.  Values int32, offsets `[R + 1]`."""
        vocabulary = self.known_values()
        parts = _exploded(column, self.settings["separator"])
        parts = parts.with_columns(_look_up(parts["value"], vocabulary).alias("id"))
        return _bags(parts.filter(pl.col("id") > 0), len(column), len(vocabulary) + 1)


class HashedText(Encoder):
    """Words, lower-cased, as a bag of hash buckets: no vocabulary to store, new words included."""

    feature_kind: ClassVar[str] = "multi_valued"

    @classmethod
    def fit(cls, column: pl.Series, spec: Column) -> Self:  # noqa: ARG003
        """Set the number of buckets, which does not depend on the text."""
        return cls({"buckets": TEXT_BUCKETS})

    def encode(self, column: pl.Series) -> Encoded:
        """Return bags of bucket numbers 1 … buckets − 1, in the order of the words."""
        words = column.cast(pl.String).str.to_lowercase().str.extract_all(r"[\p{L}\p{N}]+")
        parts = pl.DataFrame({"row": pl.int_range(len(column), eager=True), "value": words})
        parts = parts.explode("value").drop_nulls("value")
        buckets = self.settings["buckets"]
        distinct = parts["value"].unique(maintain_order=True)
        # CRC-32 never changes; the hash of polars may, between versions
        numbers = [1 + zlib.crc32(word.encode()) % (buckets - 1) for word in distinct.to_list()]
        table = pl.DataFrame({"value": distinct, "id": pl.Series(numbers, dtype=pl.UInt32)})
        joined = parts.join(table, on="value", how="left", maintain_order="left")
        return _bags(joined, len(column), buckets)


class Numeric(Encoder):
    """A number, standardised, beside a flag that says whether it is missing."""

    feature_kind: ClassVar[str] = "numeric"

    @classmethod
    def fit(cls, column: pl.Series, spec: Column) -> Self:  # noqa: ARG003
        """Learn mean and standard deviation of the values that are there."""
        known = _numbers(column)
        known = known[np.isfinite(known)]
        mean = float(known.mean()) if len(known) else 0.0
        std = float(known.std()) if len(known) else 0.0
        return cls({"mean": mean, "std": std if std > 0 else 1.0})

    def encode(self, column: pl.Series) -> Encoded:
        """Return (standardised value, missing flag).  Values `[R, 2]`, float32."""
        numbers = _numbers(column)
        missing = ~np.isfinite(numbers)
        scaled = (numbers - self.settings["mean"]) / self.settings["std"]
        scaled = np.clip(np.where(missing, 0.0, scaled), -LARGEST, LARGEST)
        pair = np.stack([scaled, missing], axis=1)
        return Encoded(pair.astype(np.float32), None, 2)


class Dense(Encoder):
    """A vector of fixed length a row, kept as float16; missing rows are zero."""

    feature_kind: ClassVar[str] = "dense"

    @classmethod
    def fit(cls, column: pl.Series, spec: Column) -> Self:
        """Take the length from the first vector there is."""
        vectors = _vectors(column).drop_nulls()
        if not len(vectors) or not len(vectors[0]):
            raise DataError(f"dense column {spec.name!r} holds no vector: leave it out")
        return cls({"size": len(vectors[0]), "name": spec.name})

    def encode(self, column: pl.Series) -> Encoded:
        """Return vectors.  Values `[R, n]`, float16."""
        vectors, size = _vectors(column), self.settings["size"]
        present = vectors.is_not_null().to_numpy()
        lengths = vectors.list.len().drop_nulls()
        if (lengths != size).any():
            raise DataError(
                f"dense column {self.settings['name']!r} must have vectors of {size} numbers, "
                f"got one of {lengths.filter(lengths != size)[0]}"
            )
        numbers = vectors.drop_nulls().explode().to_numpy().reshape(-1, size)
        if not (np.abs(numbers) <= LARGEST_HALF).all():
            raise DataError(
                f"dense column {self.settings['name']!r} must hold numbers between "
                f"±{LARGEST_HALF:g}, got {numbers[~(np.abs(numbers) <= LARGEST_HALF)][0]}"
            )
        values = np.zeros((len(column), size), dtype=np.float16)
        values[present] = numbers
        return Encoded(values, None, size)


class SentenceVectors(Encoder):
    """Text as vectors of a sentence-transformers model on disk, kept as float16."""

    feature_kind: ClassVar[str] = "dense"

    @classmethod
    def fit(cls, column: pl.Series, spec: Column) -> Self:  # noqa: ARG003
        """Remember the model; nothing is learned."""
        return cls({"model": spec.model})

    def encode(self, column: pl.Series) -> Encoded:
        """Return vectors; rows without text are zero.  Values `[R, n]`, float16."""
        texts = _clean(column)
        present = texts.is_not_null().to_numpy()
        found = _sentence_model(self.settings["model"]).encode(texts.drop_nulls().to_list())
        vectors = np.asarray(found, dtype=np.float16)
        values = np.zeros((len(texts), vectors.shape[1]), dtype=np.float16)
        values[present] = vectors
        return Encoded(values, None, vectors.shape[1])


ENCODERS: dict[str, type[Encoder]] = {
    "categorical": Categorical,
    "multi_valued": MultiValued,
    "numeric": Numeric,
    "text": HashedText,
    "sentence": SentenceVectors,
    "dense": Dense,
}


def _sentence_model(path: str) -> Any:
    if not Path(path).is_dir():
        raise ConfigError(f"the sentence model must be a folder on disk, got {path!r}")
    try:
        library = import_module("sentence_transformers")
    except ImportError as error:
        raise ConfigError("sentence vectors need: pip install 'crossbatch[content]'") from error
    return library.SentenceTransformer(path)


def _clean(column: pl.Series) -> pl.Series:
    text = column.cast(pl.String).str.strip_chars()
    return text.set(text == "", None)


def _vocabulary(values: pl.Series) -> pl.Series:
    """Distinct values, most frequent first, equals in order of their bytes."""
    counted = values.drop_nulls().alias("value").value_counts(name="count")
    return counted.sort("count", "value", descending=[True, False])["value"]


def _look_up(values: pl.Series, vocabulary: pl.Series) -> pl.Series:
    ids = pl.int_range(1, len(vocabulary) + 1, dtype=pl.UInt32, eager=True)
    table = pl.DataFrame({"value": vocabulary.cast(pl.String), "id": ids})
    frame = pl.DataFrame({"value": values.cast(pl.String)})
    joined = frame.join(table, on="value", how="left", maintain_order="left")
    return joined["id"].fill_null(UNKNOWN)


def _exploded(column: pl.Series, separator: str) -> pl.DataFrame:
    """One row a value: `row` is where it came from."""
    lists = column if column.dtype == pl.List else column.cast(pl.String).str.split(separator)
    frame = pl.DataFrame({"row": pl.int_range(len(column), eager=True), "value": lists})
    frame = frame.explode("value")
    return frame.with_columns(_clean(frame["value"]).alias("value")).drop_nulls("value")


def _bags(parts: pl.DataFrame, num_rows: int, num_values: int) -> Encoded:
    offsets = offsets_of(np.bincount(parts["row"].to_numpy(), minlength=num_rows))
    return Encoded(parts["id"].to_numpy().astype(np.int32), offsets, num_values)


def _numbers(column: pl.Series) -> np.ndarray:
    """The numbers as float64; what float32 cannot hold counts as missing."""
    numbers = np.array(column.cast(pl.Float64, strict=False).to_numpy(), dtype=np.float64)
    numbers[np.abs(numbers) > LARGEST] = np.nan
    return numbers


def _vectors(column: pl.Series) -> pl.Series:
    if column.dtype == pl.String:
        column = column.str.extract_all(r"[-+.\deE]+")
    elif isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    return column.cast(pl.List(pl.Float64))
