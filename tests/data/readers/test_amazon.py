from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

from crossbatch.data import ReadOptions, open_source
from crossbatch.data.readers.source import Tally
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

OLD_REVIEWS = (
    '{"reviewerID": "A1", "asin": "0001", "overall": 5.0, "reviewText": "\\u2026 \\"fine\\"", '
    '"unixReviewTime": 1357516800, "reviewTime": "01 7, 2013"}\n'
    '{"reviewerID": "A2", "asin": "0002", "overall": 1.0, "unixReviewTime": 1357603200}\n'
)
OLD_META = (
    "{'asin': '0001', 'title': \"Ann's &amp; Bob's Atlas\", 'price': 12.5, "
    "'categories': [['Books', 'Travel'], ['Books', 'Maps']], "
    "'related': {'also_bought': ['0002']}}\n"
    "{'asin': '0002', 'categories': [['Books']], 'brand': 'Acme'}\n"
    "{'asin': '9999', 'title': 'not wanted', broken\n"
)
NEW_REVIEWS = (
    '{"rating": 4.0, "title": "ok", "asin": "V1", "parent_asin": "P1", "user_id": "AE", '
    '"timestamp": 1588687728923, "verified_purchase": true}\n'
)
NEW_META = (
    '{"main_category": "Books", "title": "A \\"B\\"", "price": "from 14.99", '
    '"store": "Acme", "categories": ["Books", "Travel"], "parent_asin": "P1"}\n'
)
META_2018 = (
    '{"category": ["Books", "Travel"], "title": "X", "brand": "Acme", '
    '"price": "$1,005.50", "asin": "0001"}\n'
)


def write(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def log_of(path: Path) -> list[dict[str, object]]:
    source = open_source(path)
    assert source.format == "amazon"
    return pl.concat(list(source.batches(Tally()))).to_dicts()


def content_of(path: Path, *keys: str) -> list[dict[str, object]]:
    source = open_source(path)
    assert source.item_table is not None
    return source.item_table(pl.Series(list(keys)), Tally()).to_dicts()


def test_2014_reviews_and_python_literals(tmp_path: Path) -> None:
    write(tmp_path / "reviews_Books_5.json.gz", OLD_REVIEWS)
    write(tmp_path / "meta_Books.json.gz", OLD_META)
    assert log_of(tmp_path) == [
        {"user": "A1", "item": "0001", "time": 1357516800, "rating": 5.0},
        {"user": "A2", "item": "0002", "time": 1357603200, "rating": 1.0},
    ]
    first, second = content_of(tmp_path, "0001", "0002")
    assert first == {
        "key": "0001",
        "title": "Ann's & Bob's Atlas",
        "category": "Travel",  # the leaf of the first path, as ComiRec takes it
        "categories": ["Books", "Travel"],
        "brand": None,
        "price": 12.5,
    }
    assert (second["title"], second["category"], second["brand"]) == (None, "Books", "Acme")


def test_2018_metadata(tmp_path: Path) -> None:
    write(tmp_path / "Books_5.json.gz", OLD_REVIEWS)
    write(tmp_path / "meta_Books.json.gz", META_2018)
    (entry,) = content_of(tmp_path, "0001")
    assert (entry["category"], entry["brand"], entry["price"]) == ("Travel", "Acme", 1005.5)


def test_2023_goes_by_the_parent(tmp_path: Path) -> None:
    write(tmp_path / "Books.jsonl.gz", NEW_REVIEWS)
    write(tmp_path / "meta_Books.jsonl.gz", NEW_META)
    assert log_of(tmp_path) == [{"user": "AE", "item": "P1", "time": 1588687728923, "rating": 4.0}]
    (entry,) = content_of(tmp_path, "P1")
    assert (entry["title"], entry["brand"], entry["price"]) == ('A "B"', "Acme", 14.99)


def test_2023_csv(tmp_path: Path) -> None:
    path = write(
        tmp_path / "Books.csv", "user_id,parent_asin,rating,timestamp\nAE,P1,4.0,1588687728923\n"
    )
    assert log_of(path) == [{"user": "AE", "item": "P1", "time": "1588687728923", "rating": "4.0"}]


def test_a_wanted_line_that_cannot_be_parsed_is_counted(tmp_path: Path) -> None:
    write(tmp_path / "reviews.json", OLD_REVIEWS)
    write(tmp_path / "meta_x.json", OLD_META)
    tally = Tally()
    source = open_source(tmp_path)
    assert source.item_table is not None
    assert len(source.item_table(pl.Series(["0001", "9999"]), tally)) == 1
    assert dict(tally.bad) == {"metadata line cannot be parsed": 1}


def test_a_line_of_code_is_not_run(tmp_path: Path) -> None:
    write(tmp_path / "reviews.json", OLD_REVIEWS)
    trap = tmp_path / "trap"
    write(tmp_path / "meta_x.json", f"{{'asin': '0001', 'title': open({str(trap)!r}, 'w').name}}\n")
    assert content_of(tmp_path, "0001") == []
    assert not trap.exists()


def test_metadata_may_be_named(tmp_path: Path) -> None:
    reviews = write(tmp_path / "reviews.json", OLD_REVIEWS)
    meta = write(tmp_path / "elsewhere.json", OLD_META)
    source = open_source(reviews, "amazon", ReadOptions(items=meta))
    assert source.files == (reviews, meta)
    assert [column.name for column in source.item_columns][:2] == ["title", "category"]


def test_other_json_is_not_amazon(tmp_path: Path) -> None:
    path = write(tmp_path / "log.json", json.dumps({"user": 1, "item": 2, "time": 3}) + "\n")
    assert open_source(path).format == "table"
    with pytest.raises(DataError, match="reviewerID"):
        open_source(path, "amazon")


def test_two_metadata_files_are_a_question(tmp_path: Path) -> None:
    write(tmp_path / "reviews.json", OLD_REVIEWS)
    for name in ("meta_a.json", "meta_b.json"):
        write(tmp_path / name, OLD_META)
    with pytest.raises(DataError, match="--items"):
        open_source(tmp_path)
