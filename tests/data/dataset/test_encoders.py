from __future__ import annotations

import itertools
import sys
import zlib
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from crossbatch.data.dataset.encoders import ENCODERS, fit
from crossbatch.data.readers.source import KINDS, Column
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path


def bags(encoded: object) -> list[list[int]]:
    values, offsets = encoded.values, encoded.offsets  # type: ignore[attr-defined]
    return [values[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def test_every_kind_has_an_encoder() -> None:
    assert set(ENCODERS) == set(KINDS)


def test_categorical_ids_fall_with_frequency_and_zero_is_unknown() -> None:
    column = pl.Series(["b", "a", None, "b", " c ", ""])
    encoder = fit(column, Column("x", "categorical"))
    encoded = encoder.encode(column)
    assert encoded.values.tolist() == [1, 2, 0, 1, 3, 0]
    assert (encoded.num_values, encoded.values.dtype) == (4, np.int32)
    assert encoder.encode(pl.Series(["c", "new", None])).values.tolist() == [3, 0, 0]


def test_categorical_takes_numbers_too() -> None:
    column = pl.Series([7, 7, 3])
    encoder = fit(column, Column("x", "categorical"))
    assert encoder.encode(pl.Series([3, 7, 5])).values.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    "column",
    [pl.Series([["p", "q"], None, ["q"], []]), pl.Series(["p|q", None, " q ", ""])],
    ids=["lists", "strings"],
)
def test_multi_valued_bags_by_hand(column: pl.Series) -> None:
    encoder = fit(column, Column("x", "multi_valued"))
    encoded = encoder.encode(column)
    assert bags(encoded) == [[2, 1], [], [1], []]
    assert encoded.num_values == 3


def test_unknown_values_are_left_out_of_a_bag() -> None:
    column = pl.Series(["p|q", "q"])
    encoder = fit(column, Column("x", "multi_valued"))
    assert bags(encoder.encode(pl.Series(["new|p", "new"]))) == [[2], []]


def test_numeric_is_standardised_with_a_missing_flag() -> None:
    column = pl.Series([1.0, None, 3.0, float("nan")])
    encoder = fit(column, Column("x", "numeric"))
    assert encoder.settings == {"mean": 2.0, "std": 1.0}
    assert encoder.encode(column).values.tolist() == [[-1, 0], [0, 1], [1, 0], [0, 1]]
    assert encoder.encode(pl.Series(["4", "four"])).values.tolist() == [[2, 0], [0, 1]]


def test_a_constant_number_does_not_divide_by_zero() -> None:
    column = pl.Series([5.0, 5.0])
    encoded = fit(column, Column("x", "numeric")).encode(column)
    assert encoded.values.tolist() == [[0, 0], [0, 0]]


def test_text_becomes_hashed_words() -> None:
    column = pl.Series(["Red Fox, red", None, "Füchse-2"])
    encoded = fit(column, Column("x", "text")).encode(column)
    hashes = {
        word: 1 + zlib.crc32(word.encode()) % (2**15 - 1) for word in ("red", "fox", "füchse", "2")
    }
    expected = [["red", "fox", "red"], [], ["füchse", "2"]]
    assert bags(encoded) == [[hashes[word] for word in words] for words in expected]


def test_dense_vectors_keep_their_rows() -> None:
    column = pl.Series([[1.0, 2.0], None, [3.0, -4.0]])
    encoded = fit(column, Column("x", "dense")).encode(column)
    assert encoded.values.tolist() == [[1, 2], [0, 0], [3, -4]]
    assert encoded.values.dtype == np.float16


def test_dense_vectors_may_be_text() -> None:
    column = pl.Series(["[1.5, -2e0]", "3 4"])
    encoded = fit(column, Column("x", "dense")).encode(column)
    assert encoded.values.tolist() == [[1.5, -2.0], [3.0, 4.0]]


@pytest.mark.parametrize("text", ["Film 7 of 1999", "1 2 x", "1e", "0.5 nan"])
def test_bug_digits_of_a_title_became_a_vector(text: str) -> None:
    column = pl.Series("vec", ["1 2", None, " ", text])
    with pytest.raises(DataError, match=f"'vec' must hold numbers alone, .* got '{text}'"):
        fit(column, Column("vec", "dense"))
    whole = pl.Series("vec", ["1 2", None, " "])
    encoded = fit(whole, Column("vec", "dense")).encode(whole)
    assert encoded.values.tolist() == [[1, 2], [0, 0], [0, 0]]


def test_dense_vectors_of_unequal_length_are_refused() -> None:
    column = pl.Series([[1.0, 2.0], [3.0]])
    encoder = fit(column, Column("vec", "dense"))
    with pytest.raises(DataError, match="'vec' must have vectors of 2 numbers, got one of 1"):
        encoder.encode(column)


def test_sentence_vectors_come_from_a_model_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model:
        def __init__(self, path: str) -> None:
            assert path == str(tmp_path)

        def encode(self, texts: list[str]) -> np.ndarray:
            return np.array([[len(text), 1.0] for text in texts])

    monkeypatch.setitem(
        sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Model)
    )
    column = pl.Series(["abc", None])
    spec = Column("title", "sentence", model=str(tmp_path))
    encoder = fit(column, spec)
    assert encoder.encode(column).values.tolist() == [[3, 1], [0, 0]]


def test_a_missing_sentence_model_is_named(tmp_path: Path) -> None:
    spec = Column("title", "sentence", model=str(tmp_path / "absent"))
    encoder = fit(pl.Series(["x"]), spec)
    with pytest.raises(ConfigError, match="folder on disk"):
        encoder.encode(pl.Series(["x"]))


def test_an_unknown_kind_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="categorical, multi_valued"):
        Column("x", "fancy")
