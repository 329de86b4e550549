from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from crossbatch.data import Column, Dataset, Source
from crossbatch.errors import DataError

Maker = Callable[..., Dataset]
SourceOf = Callable[..., Source]
ROWS = [(f"u{user}", item, step) for user in range(10) for step, item in enumerate("abc")]


@pytest.fixture
def dataset(make_dataset: Maker, source_of: SourceOf, content: dict[str, Any]) -> Dataset:
    return make_dataset(source_of(ROWS, **content))


def test_rows_follow_the_items_with_padding_first(dataset: Dataset) -> None:
    a, b, c = dataset.item_ids(["a", "b", "c"])
    genre = dataset.item_features["genre"]
    assert (genre.kind, genre.num_values, len(genre.values)) == ("categorical", 3, 4)
    assert genre.values[[0, a, b, c]].tolist() == [0, 1, 0, 2]
    price = dataset.item_features["price"].values
    assert price[[0, a, b, c]].tolist() == [[0, 1], [-1, 0], [0, 1], [1, 0]]
    tags = dataset.item_features["tags"]
    assert tags.offsets is not None
    bags = [tags.values[tags.offsets[row] : tags.offsets[row + 1]].tolist() for row in (0, a, b, c)]
    assert bags == [[], [2, 1], [], [1]]


def test_text_is_a_multi_valued_feature(dataset: Dataset) -> None:
    title = dataset.item_features["title"]
    assert title.kind == "multi_valued"
    assert title.offsets is not None
    a, c = dataset.item_ids(["a", "c"])
    first = title.values[title.offsets[a]], title.values[title.offsets[c]]
    assert first[0] == first[1] > 0  # both begin with "red"


def test_titles_fall_back_to_keys(dataset: Dataset) -> None:
    assert dataset.item_titles(dataset.item_ids(["a", "b"])) == ["Red Fox", "b"]


def test_coverage_does_not_count_the_padding(dataset: Dataset) -> None:
    summary = dataset.manifest["features"]["items"]
    assert summary["genre"]["coverage"] == pytest.approx(2 / 3, abs=1e-6)


def test_new_items_are_encoded_with_the_stored_vocabularies(dataset: Dataset) -> None:
    new = pl.DataFrame(
        {"title": ["Red Dog"], "genre": ["y"], "tags": [["q", "new"]], "price": [5.0]}
    )
    encoded = dataset.encode_items(new)
    assert encoded["genre"].values.tolist() == [2]
    assert encoded["price"].values.tolist() == [[3.0, 0.0]]
    assert encoded["tags"].values.tolist() == [1]
    known = dataset.item_features["title"]
    assert encoded["title"].values[0] == known.values[known.offsets[dataset.item_ids(["a"])[0]]]  # type: ignore[index]
    for name, feature in encoded.items():
        assert feature.num_values == dataset.item_features[name].num_values
        assert feature.kind == dataset.item_features[name].kind


def test_new_items_may_lack_columns(dataset: Dataset) -> None:
    encoded = dataset.encode_items(pl.DataFrame({"genre": ["x", "z"]}))
    assert encoded["genre"].values.tolist() == [1, 0]
    assert encoded["price"].values.tolist() == [[0, 1], [0, 1]]
    assert encoded["tags"].offsets.tolist() == [0, 0, 0]  # type: ignore[union-attr]


def test_a_table_without_any_known_column_is_a_mistake(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="genre"):
        dataset.encode_items(pl.DataFrame({"Genre": ["x"]}))


def test_user_features_have_one_row_a_user(make_dataset: Maker, source_of: SourceOf) -> None:
    table = pl.DataFrame(
        {"key": [f"u{n}" for n in range(10)], "age": [float(n) for n in range(10)]}
    )
    source = source_of(
        ROWS, user_table=lambda _k, _t: table, user_columns=(Column("age", "numeric"),)
    )
    dataset = make_dataset(source)
    ages = dataset.user_features["age"].values[:, 0]
    order = sorted(range(10), key=lambda row: ages[row])
    assert dataset.user_keys(order) == [f"u{n}" for n in range(10)]
    assert dataset.encode_users(pl.DataFrame({"age": [4.5]}))["age"].values.tolist() == [[0.0, 0.0]]


def test_repeated_and_missing_item_rows_are_reported(
    make_dataset: Maker, source_of: SourceOf, content: dict[str, Any]
) -> None:
    table = content["item_table"](None, None).filter(pl.col("key") != "b")
    doubled = pl.concat([table, table.with_columns(genre=pl.lit("other"))])
    dataset = make_dataset(source_of(ROWS, **{**content, "item_table": lambda _k, _t: doubled}))
    notes = " ".join(dataset.manifest["reading"]["notes"])
    assert "2 repeated rows of items" in notes
    assert "1 items have no content" in notes
    genre = dataset.item_features["genre"]
    assert genre.values[dataset.item_ids(["a", "b", "c"])].tolist() == [
        1,
        0,
        2,
    ]  # the first row counts


def test_values_that_are_no_numbers_are_counted_and_a_column_of_them_refused(
    make_dataset: Maker, source_of: SourceOf
) -> None:
    def prepared(ages: list[str | None]) -> Dataset:
        table = pl.DataFrame({"key": [f"u{n}" for n in range(10)], "age": ages})
        columns = (Column("age", "numeric"),)
        return make_dataset(source_of(ROWS, user_table=lambda _k, _t: table, user_columns=columns))

    dataset = prepared(["x", "x", " 7 ", "", None, *"12345"])
    notes = dataset.manifest["reading"]["notes"]
    assert "2 of 9 values of 'age' are not numbers, such as 'x', and count as missing" in notes
    missing = dataset.user_features["age"].values[dataset.user_ids(["u0", "u1", "u2"]), 1]
    assert missing.tolist() == [1, 1, 0]
    with pytest.raises(DataError, match=r"6 of 10 values of 'age' .* such as '.*': declare it as"):
        prepared(["x", "1e99", *"xxxx", *"1234"])
    with pytest.raises(DataError, match="'age' must be a number, got 'abc'"):
        dataset.encode_users(pl.DataFrame({"age": ["4", "abc"]}))
