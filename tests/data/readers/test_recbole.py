from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

from crossbatch.data import Source, open_source
from crossbatch.data.readers.source import Tally
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

INTER = (
    "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "1\ta\t4.0\t874965758\n2\tb\t1.0\t876893171\n"
)
ITEM = (
    "item_id:token\tmovie_title:token_seq\trelease_year:float\tclass:token_seq\tvec:float_seq\n"
    'a\tToy "Story"\t1995\tAnimation Comedy\t0.5 1.5\nb\tHeat\t\tDrama\t1 2\n'
)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "ml.inter").write_text(INTER)
    (tmp_path / "ml.item").write_text(ITEM)
    (tmp_path / "ml.user").write_text("user_id:token\tage:float\n1\t24\n2\t53\n")
    return open_source(tmp_path)


def test_interactions(source: Source) -> None:
    assert source.format == "recbole"
    frame = pl.concat(list(source.batches(Tally())))
    assert frame.rows() == [("1", "a", "874965758", "4.0"), ("2", "b", "876893171", "1.0")]


def test_types_of_the_header_become_kinds(source: Source) -> None:
    kinds = {column.name: column.kind for column in source.item_columns}
    assert kinds == {
        "movie_title": "text",
        "release_year": "numeric",
        "class": "multi_valued",
        "vec": "dense",
    }
    assert source.title == "movie_title"
    assert {column.separator for column in source.item_columns} == {" "}
    assert [column.name for column in source.user_columns] == ["age"]


def test_content(source: Source) -> None:
    assert source.item_table is not None
    table = source.item_table(pl.Series([]), Tally())
    assert table["key"].to_list() == ["a", "b"]
    assert table["movie_title"].to_list() == ['Toy "Story"', "Heat"]
    assert table["release_year"].to_list() == ["1995", None]


def test_parts_of_a_split_are_not_the_log(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"ml.{part}.inter").write_text(INTER)
    with pytest.raises(DataError, match="exactly one"):
        open_source(tmp_path, "recbole")
    (tmp_path / "ml.inter").write_text(INTER)
    assert open_source(tmp_path).files == (tmp_path / "ml.inter",)


def test_a_header_without_types_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.inter").write_text("user_id\titem_id\n1\t2\n")
    with pytest.raises(DataError, match="'user_id' needs a type"):
        open_source(tmp_path, "recbole")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.inter").write_text("user_id:token\titem_id:token\n1\t2\n")
    with pytest.raises(DataError, match="no column 'timestamp'"):
        open_source(tmp_path, "recbole")
