"""Days added to a dataset, compared with the preparation of the whole log at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.data import Column, Dataset, PrepareOptions, Source, append, open_dataset, prepare
from crossbatch.data.prepare import sequences, staged_log
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path

Maker = Callable[..., Dataset]
SourceOf = Callable[..., Source]
Rows = list[tuple[str, str, int]]
logs = st.lists(
    st.tuples(st.sampled_from("uvwxyzUVWXYZ"), st.sampled_from("abcdefg"), st.integers(0, 9)),
    min_size=30,
    max_size=90,
)
GROWING = {"split": "leave_last_out", "growing": True}


def interactions(dataset: Dataset) -> list[tuple[str, str, int]]:
    """All interactions by their original keys, sorted."""
    users = np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets))
    columns = (dataset.user_keys(users), dataset.item_keys(dataset.items), dataset.times.tolist())
    return sorted(zip(*columns, strict=True))


def keys(dataset: Dataset) -> tuple[list[str], list[str]]:
    items = dataset.item_keys(range(1, dataset.num_items + 1))
    return dataset.user_keys(range(dataset.num_users)), items


def days(tmp_path_factory: pytest.TempPathFactory, base: Dataset, *parts: Source) -> Dataset:
    folder = tmp_path_factory.mktemp("days")
    path = base.path
    for number, part in enumerate(parts):
        append(part, path, folder / str(number))
        path = folder / str(number)
    return open_dataset(path)


@settings(max_examples=25)
@given(
    rows=logs,
    cuts=st.tuples(st.floats(0.4, 0.7), st.floats(0.7, 1.0)),
    least=st.integers(1, 5),
    core=st.booleans(),
    ties=st.sampled_from(["shuffle", "stable", "item"]),
)
def test_days_one_by_one_are_the_whole_log(
    make_dataset: Maker,
    source_of: SourceOf,
    tmp_path_factory: pytest.TempPathFactory,
    rows: Rows,
    cuts: tuple[float, float],
    least: int,
    core: bool,
    ties: str,
) -> None:
    options = {"min_item_count": least, "min_user_count": least, "core": core, "ties": ties}
    first, second = (round(cut * len(rows)) for cut in cuts)
    try:
        base = make_dataset(rows[:first], **GROWING, **options)
        whole = make_dataset(rows, **GROWING, **options)
    except DataError:  # nothing is left of so few
        return
    parts = [rows[first:second], rows[second:]]
    grown = days(tmp_path_factory, base, *(source_of(part) for part in parts if part))
    grown.verify()
    assert interactions(grown) == interactions(whole)
    old_users, old_items = keys(base)
    users, items = keys(grown)
    assert users[: len(old_users)] == old_users
    assert items[: len(old_items)] == old_items
    for field in ("staged", "dropped_by_item", "dropped_by_user", "kept"):
        assert grown.manifest["accounting"][field] == whole.manifest["accounting"][field]
    assert grown.manifest["reading"]["lines"] == len(rows)
    moments = [grown.times[a:b] for a, b in zip(grown.offsets, grown.offsets[1:], strict=False)]
    assert all((np.diff(each) >= 0).all() for each in moments)
    if ties == "item":  # the one rule whose order does not depend on the order of reading
        expected = dict(zip(keys(whole)[0], sequence_keys(whole), strict=True))
        assert dict(zip(users, sequence_keys(grown), strict=True)) == expected


def sequence_keys(dataset: Dataset) -> list[list[str]]:
    bounds = zip(dataset.offsets, dataset.offsets[1:], strict=False)
    return [dataset.item_keys(dataset.items[a:b]) for a, b in bounds]


def test_rows_are_merged_in_pieces(
    make_dataset: Maker,
    source_of: SourceOf,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    rows = [
        (f"u{u}", f"i{i}", int(t)) for u, i, t in rng.integers(0, (40, 20, 500), size=(1200, 3))
    ]
    base = make_dataset(rows[:900], **GROWING)
    expected = days(tmp_path_factory, base, source_of(rows[900:]))
    monkeypatch.setattr(sequences, "BUCKET_ROWS", 50)
    monkeypatch.setattr(staged_log, "CHUNK_ROWS", 64)
    found = days(tmp_path_factory, base, source_of(rows[900:]))
    assert found.manifest["checksum"] == expected.manifest["checksum"]
    assert interactions(found) == sorted((u, i, 1_000_000 * t) for u, i, t in rows)


def test_content_grows_and_is_replaced(
    make_dataset: Maker, source_of: SourceOf, tmp_path_factory: pytest.TempPathFactory
) -> None:
    columns = (
        Column("genre", "categorical"),
        Column("tags", "multi_valued"),
        Column("price", "numeric"),
        Column("vector", "dense"),
    )

    def source(rows: Rows, content: list[dict[str, Any]]) -> Source:
        schema = {
            "key": pl.String, "title": pl.String, "genre": pl.String,
            "tags": pl.List(pl.String), "price": pl.Float64, "vector": pl.List(pl.Float64),
        }  # fmt: skip
        table = pl.DataFrame(content, schema=schema)
        return source_of(rows, item_table=lambda _k, _t: table, item_columns=columns, title="title")

    old = [
        {"key": "a", "title": "A", "genre": "x", "tags": ["p"], "price": 1.0, "vector": [1, 0]},
        {
            "key": "b",
            "title": "B",
            "genre": "y",
            "tags": ["q", "p"],
            "price": 3.0,
            "vector": [0, 1],
        },
    ]
    new = [
        {
            "key": "b",
            "title": "B2",
            "genre": "z",
            "tags": ["r", "q"],
            "price": 5.0,
            "vector": [2, 2],
        },
        {"key": "c", "title": "C", "genre": "x", "tags": None, "price": None, "vector": None},
    ]
    base = make_dataset(
        source([("u", "a", 1), ("u", "b", 2), ("u", "a", 3), ("u", "a", 4)], old), **GROWING
    )
    more: Rows = [("u", "c", 5), ("v", "d", 5), ("v", "a", 6)]
    grown = days(tmp_path_factory, base, source(more, new))
    grown.verify()
    ids = {key: int(grown.item_ids([key])[0]) for key in "abcd"}
    assert grown.item_titles(ids.values()) == ["A", "B2", "C", "d"]
    features = grown.item_features
    genre = {key: int(features["genre"].values[row]) for key, row in ids.items()}
    before = base.item_features["genre"].values
    assert genre["a"] == genre["c"] == before[base.item_ids(["a"])[0]]
    assert genre["b"] == 3  # after the two that were known
    assert genre["d"] == 0
    tags, offsets = features["tags"].values, features["tags"].offsets
    assert offsets is not None
    of = {key: tags[offsets[row] : offsets[row + 1]].tolist() for key, row in ids.items()}
    assert of["a"] == [1]  # "p", the most frequent
    assert of["b"] == [3, 2]  # "r" is new, "q" is not
    assert of["c"] == of["d"] == []
    price = {key: features["price"].values[row].tolist() for key, row in ids.items()}
    assert price["a"] == [-1.0, 0.0]  # mean 2 and deviation 1 stay those of the first day
    assert price["b"] == [3.0, 0.0]
    assert price["c"] == price["d"] == [0.0, 1.0]
    assert features["vector"].values[ids["b"]].tolist() == [2.0, 2.0]
    assert features["vector"].values[ids["d"]].tolist() == [0.0, 0.0]
    assert grown.manifest["features"]["items"]["genre"]["coverage"] == 0.75


def test_a_table_without_a_column_changes_nothing_of_it(
    make_dataset: Maker, source_of: SourceOf, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows: Rows = [("u", "a", 1), ("u", "b", 2), ("u", "a", 3), ("u", "a", 4)]
    table = pl.DataFrame({"key": ["a", "b"], "genre": ["x", "y"]})
    column = (Column("genre", "categorical"),)
    base = make_dataset(
        source_of(rows, item_table=lambda _k, _t: table, item_columns=column), **GROWING
    )
    bare = source_of([("u", "c", 4)], item_table=lambda _k, _t: pl.DataFrame({"key": ["a"]}))
    grown = days(tmp_path_factory, base, bare)
    before = base.item_features["genre"].values.tolist()
    assert grown.item_features["genre"].values.tolist() == [*before, 0]


def file_of(folder: Path, name: str, rows: Rows) -> Path:
    path = folder / name
    pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row").write_csv(path)
    return path


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    from crossbatch.data import open_source

    rows = [(f"u{n % 5}", f"i{n % 3}", 1_600_000_000 + 7_000 * n) for n in range(60)]
    source = open_source(file_of(tmp_path, "one.csv", rows))
    options = PrepareOptions(split="day", growing=True, min_item_count=1, min_user_count=1)
    prepare(source, tmp_path / "shop", options)
    return tmp_path / "shop"


def test_in_place_and_again(shop: Path, tmp_path: Path) -> None:
    from crossbatch.data import open_source

    rows = [(f"u{n % 5}", f"i{n % 4}", 1_600_500_000 + 7_000 * n) for n in range(10)]
    source = open_source(file_of(tmp_path, "two.csv", rows))
    first = append(source, shop, shop, overwrite=True)
    assert first["counts"]["interactions"] == 70
    assert first["appended"][0]["interactions"] == 10
    left = shop.with_name(f".{shop.name}.partial-x")  # by a kill between the swap and its end
    left.mkdir()
    assert append(source, shop, shop, overwrite=True) == first  # the same command after a kill
    assert not left.exists()
    with pytest.raises(DataError, match=r"two.csv is in .*shop already: add each file once"):
        append(source, shop, tmp_path / "twice")
    assert not (tmp_path / "twice").exists()


def test_the_same_table_of_items_may_come_with_every_day(shop: Path, tmp_path: Path) -> None:
    from crossbatch.data import open_source
    from crossbatch.data.readers.source import ReadOptions

    items = tmp_path / "items.csv"
    items.write_text("item,title\n" + "".join(f"i{n},title {n}\n" for n in range(9)))
    options = ReadOptions(items=items)
    for day in (2, 3):
        rows = [
            (f"u{n % 5}", f"i{n % 4}", 1_600_000_000 + 500_000 * day + 7_000 * n) for n in range(10)
        ]
        source = open_source(file_of(tmp_path, f"{day}.csv", rows), options=options)
        manifest = append(source, shop, shop, overwrite=True)
        assert append(source, shop, shop, overwrite=True) == manifest
    assert manifest["counts"]["interactions"] == 80
    items.write_text("item,title\ni1,another title\n")
    with pytest.raises(DataError, match=r"3.csv is in .*shop already: add each file once"):
        append(source, shop, shop, overwrite=True)


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"split": "user"}, {}, "split by users"),
        ({"split": "day", "min_item_count": 5}, {}, "prepare it with --growing"),
        ({**GROWING, "min_item_count": 2}, {"min_item_count": 5}, "min_item_count is 5, but"),
        (GROWING, {"ties": "item"}, "ties is 'item', but"),
    ],
)
def test_what_cannot_grow_is_refused(
    make_dataset: Maker,
    source_of: SourceOf,
    tmp_path: Path,
    options: dict[str, Any],
    given: dict[str, Any],
    message: str,
) -> None:
    rows = [(f"u{n % 5}", f"i{n % 3}", 40_000 * n) for n in range(60)]
    base = make_dataset([*rows, ("u0", "rare", 1)], **options)
    with pytest.raises((ConfigError, DataError), match=message):
        append(source_of([("u0", "i0", 99)]), base.path, tmp_path / "out", given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", ["users.npy", "items.npy"])
def test_forged_rows_of_what_was_left_out_are_refused(
    make_dataset: Maker, source_of: SourceOf, tmp_path: Path, file: str
) -> None:
    from crossbatch.data.dataset.manifest import write_manifest

    rows = [(f"u{n % 5}", f"i{n % 3}", n) for n in range(60)] + [("u0", "rare", 1)]
    base = make_dataset(rows, min_item_count=5, **GROWING)
    array = np.load(base.path / "rest" / file)
    np.save(base.path / "rest" / file, array + 1_000)
    write_manifest(
        base.path, {k: v for k, v in base.manifest.items() if k not in ("files", "seal")}
    )
    with pytest.raises(DataError, match="rest contradicts itself"):
        append(source_of([("u0", "i0", 99)]), base.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
