"""Encoders of content columns: fitted once on a dataset, then able to encode new items."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import offsets_of
from crossbatch.data.dataset.tokens import (
    read_tokenizer,
    tokenise,
    tokenizer_checksum,
    train_tokenizer,
    vocabulary_size,
)
from crossbatch.errors import ConfigError, DataError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.data.readers.source import Column

UNKNOWN = 0
LARGEST, LARGEST_HALF = float(np.finfo(np.float32).max), float(np.finfo(np.float16).max)
TEXT_BUCKETS = 1 << 15
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
VECTOR = rf"^[\[(]?\s*{NUMBER}(?:[\s,;|]+{NUMBER})*\s*[\])]?$"  # a dense value as text


class Encoded(NamedTuple):
    """A column as arrays, in the layout of `Feature`."""

    values: np.ndarray
    offsets: np.ndarray | None
    num_values: int


@dataclass(frozen=True, slots=True)
class Encoder:
    """Turns a column into arrays; all it has learned is in its attributes.

    Attributes:
        kind: A key of `ENCODERS`.
        settings: Plain values, stored as JSON.
        vocabulary: Known values, for kinds that have one.
        tokenizer: JSON text of the tokenizer of "tokens".
    """

    kind: str
    settings: dict[str, Any]
    vocabulary: pl.Series | None = None
    tokenizer: str | None = None

    def encode(self, column: pl.Series) -> Encoded:
        """Encode a column, of the dataset or of new items.  Shape `[R]`."""
        return ENCODERS[self.kind](self, column)

    @property
    def feature_kind(self) -> str:
        """The layout of the arrays, see `Feature.kind`."""
        return {"text": "multi_valued", "sentence": "dense"}.get(self.kind, self.kind)

    def unreadable(self, column: pl.Series) -> pl.Series:
        """The values, as text, that are there but count as missing: no numbers of float32."""
        if self.kind != "numeric":
            return pl.Series(column.name, [], dtype=pl.String)
        missing = pl.Series(~np.isfinite(_numbers(column)))
        return clean_text(column).filter(missing).drop_nulls()

    def grown(self, column: pl.Series) -> Encoder:
        """The encoder with the values of further rows, after those it knows.

        Statistics stay as they are: a stored number must keep its meaning.
        """
        if self.vocabulary is None:
            return self
        if self.kind == "multi_valued":
            values = _exploded(column, self.settings["separator"])["value"]
        else:
            values = clean_text(column)
        return self.with_values(_vocabulary(values))

    def with_values(self, values: pl.Series) -> Encoder:
        """The encoder with those of further values that it does not know, after those it knows."""
        known = self.known_values()
        new = values.filter(~values.is_in(known.implode()))
        return replace(self, vocabulary=pl.concat([known, new.rename(known.name)]))

    def known_values(self) -> pl.Series:
        """Return the vocabulary, which an encoder that needs one must have."""
        if self.vocabulary is None:
            raise DataError("a stored feature lost its vocabulary: prepare the dataset again")
        return self.vocabulary


def fit(column: pl.Series, spec: Column) -> Encoder:
    """Learn vocabulary or statistics from the items (or users) of a dataset."""
    match spec.kind:
        case "categorical":
            return Encoder(spec.kind, {}, _vocabulary(clean_text(column)))
        case "multi_valued":
            values = _exploded(column, spec.separator)["value"]
            return Encoder(spec.kind, {"separator": spec.separator}, _vocabulary(values))
        case "numeric":
            known = _numbers(column)
            known = known[np.isfinite(known)]
            mean, std = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
            return Encoder(spec.kind, {"mean": float(mean), "std": float(std) or 1.0})
        case "dense":
            vectors = _vectors(column).drop_nulls()
            if not len(vectors) or not len(vectors[0]):
                raise DataError(f"dense column {spec.name!r} holds no vector: leave it out")
            return Encoder(spec.kind, {"size": len(vectors[0]), "name": spec.name})
        case "sentence":
            return Encoder(spec.kind, {"model": spec.model})
        case "tokens":
            text = read_tokenizer(Path(spec.model)) if spec.model else _trained_on(column, spec)
            settings = {"max_tokens": spec.max_tokens, "tokenizer": tokenizer_checksum(text)}
            return Encoder(spec.kind, settings, tokenizer=text)
    return Encoder("text", {"buckets": TEXT_BUCKETS})


def _categorical(encoder: Encoder, column: pl.Series) -> Encoded:
    """One value a row.  Ids from 1 by descending frequency; 0 is unknown or missing."""
    vocabulary = encoder.known_values()
    ids = _look_up(clean_text(column), vocabulary).to_numpy().astype(np.int32)
    return Encoded(ids, None, len(vocabulary) + 1)


def _multi_valued(encoder: Encoder, column: pl.Series) -> Encoded:
    """Any number of values a row; those outside the vocabulary are left out."""
    vocabulary = encoder.known_values()
    parts = _exploded(column, encoder.settings["separator"])
    parts = parts.with_columns(_look_up(parts["value"], vocabulary).alias("id"))
    return _bags(parts.filter(pl.col("id") > 0), len(column), len(vocabulary) + 1)


def _hashed_text(encoder: Encoder, column: pl.Series) -> Encoded:
    """Words, lower-cased, as a bag of hash buckets: no vocabulary to store, new words included.

    Bucket numbers are 1 … buckets − 1, in the order of the words.
    """
    words = column.cast(pl.String).str.to_lowercase().str.extract_all(r"[\p{L}\p{N}]+")
    parts = pl.DataFrame({"row": pl.int_range(len(column), eager=True), "value": words})
    parts = parts.explode("value").drop_nulls("value")
    buckets = encoder.settings["buckets"]
    distinct = parts["value"].unique(maintain_order=True)
    # CRC-32 never changes; the hash of polars may, between versions
    numbers = [1 + zlib.crc32(word.encode()) % (buckets - 1) for word in distinct.to_list()]
    table = pl.DataFrame({"value": distinct, "id": pl.Series(numbers, dtype=pl.UInt32)})
    joined = parts.join(table, on="value", how="left", maintain_order="left")
    return _bags(joined, len(column), buckets)


def _numeric(encoder: Encoder, column: pl.Series) -> Encoded:
    """A number, standardised, beside a flag that says whether it is missing.  `[R, 2]`, float32."""
    numbers = _numbers(column)
    if encoder.settings.get("log"):
        numbers = np.log1p(np.maximum(numbers, 0.0))
    missing = ~np.isfinite(numbers)
    scaled = (numbers - encoder.settings["mean"]) / encoder.settings["std"]
    scaled = np.clip(np.where(missing, 0.0, scaled), -LARGEST, LARGEST)
    return Encoded(np.stack([scaled, missing], axis=1).astype(np.float32), None, 2)


def _dense(encoder: Encoder, column: pl.Series) -> Encoded:
    """A vector of fixed length a row; missing rows are zero.  `[R, n]`, float16."""
    vectors, size, name = _vectors(column), encoder.settings["size"], encoder.settings["name"]
    lengths = vectors.list.len().drop_nulls()
    if (lengths != size).any():
        raise DataError(
            f"dense column {name!r} must have vectors of {size} numbers, "
            f"got one of {lengths.filter(lengths != size)[0]}"
        )
    numbers = vectors.drop_nulls().explode().to_numpy().reshape(-1, size)
    if not (np.abs(numbers) <= LARGEST_HALF).all():
        raise DataError(
            f"dense column {name!r} must hold numbers between "
            f"±{LARGEST_HALF:g}, got {numbers[~(np.abs(numbers) <= LARGEST_HALF)][0]}"
        )
    return _rows_where(vectors.is_not_null(), numbers)


def _sentence(encoder: Encoder, column: pl.Series) -> Encoded:
    """Text as vectors of a sentence-transformers model; rows without text are zero.  float16."""
    texts = clean_text(column)
    found = _sentence_model(encoder.settings["model"]).encode(texts.drop_nulls().to_list())
    return _rows_where(texts.is_not_null(), np.asarray(found))


def _tokens(encoder: Encoder, column: pl.Series) -> Encoded:
    """Text as token ids, in their order; rows without text have none."""
    if encoder.tokenizer is None:
        raise DataError("a stored feature lost its tokenizer: prepare the dataset again")
    texts = clean_text(column).to_list()
    values, offsets = tokenise(encoder.tokenizer, texts, encoder.settings["max_tokens"])
    return Encoded(values, offsets, vocabulary_size(encoder.tokenizer))


ENCODERS: dict[str, Callable[[Encoder, pl.Series], Encoded]] = {
    "categorical": _categorical,
    "multi_valued": _multi_valued,
    "numeric": _numeric,
    "text": _hashed_text,
    "sentence": _sentence,
    "tokens": _tokens,
    "dense": _dense,
}


def _trained_on(column: pl.Series, spec: Column) -> str:
    texts = clean_text(column).drop_nulls().to_list()
    if not texts:
        raise DataError(f"column {spec.name!r} holds no text to train a tokenizer on: leave it out")
    return train_tokenizer(texts)


def _rows_where(present: pl.Series, vectors: np.ndarray) -> Encoded:
    """Return the vectors in the rows that are present, zero in the others."""
    values = np.zeros((len(present), vectors.shape[1]), dtype=np.float16)
    values[present.to_numpy()] = vectors
    return Encoded(values, None, vectors.shape[1])


def _sentence_model(path: str) -> Any:
    if not Path(path).is_dir():
        raise ConfigError(f"the sentence model must be a folder on disk, got {path!r}")
    with needs_extra("text", "a sentence model"):
        return import_module("sentence_transformers").SentenceTransformer(path)


def clean_text(column: pl.Series) -> pl.Series:
    """Return values as text without surrounding blanks, null where nothing is left."""
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
    return frame.with_columns(clean_text(frame["value"]).alias("value")).drop_nulls("value")


def _bags(parts: pl.DataFrame, num_rows: int, num_values: int) -> Encoded:
    offsets = offsets_of(np.bincount(parts["row"].to_numpy(), minlength=num_rows))
    return Encoded(parts["id"].to_numpy().astype(np.int32), offsets, num_values)


def _numbers(column: pl.Series) -> np.ndarray:
    """The numbers as float64; what float32 cannot hold counts as missing."""
    if column.dtype.is_nested():
        raise DataError(f"column {column.name!r} holds {column.dtype}, not numbers")
    if column.dtype == pl.String:
        column = column.str.strip_chars()
    numbers = np.array(column.cast(pl.Float64, strict=False).to_numpy(), dtype=np.float64)
    numbers[np.abs(numbers) > LARGEST] = np.nan
    return numbers


def _vectors(column: pl.Series) -> pl.Series:
    """The vectors as lists of float64; text must be numbers between spaces, commas, ; or |."""
    if column.dtype == pl.String:
        text = clean_text(column)
        other = text.filter(~text.str.contains(VECTOR))
        if len(other):
            raise DataError(
                f"dense column {column.name!r} must hold numbers alone, such as '0.5 -1 2', got "
                f"{other[0][:60]!r}"
            )
        column = text.str.extract_all(NUMBER)
    elif isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    return column.cast(pl.List(pl.Float64))
