from __future__ import annotations

import gzip
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from crossbatch.data import Column, PrepareOptions, ReadOptions, open_dataset, open_source, prepare
from crossbatch.data.readers.source import Tally
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path

CSV = (
    "user_id,item_id,timestamp,rating\n"
    'u1,a,1400000000,5\nu1,"b,2",1400000001,3\nu2,a,1400000002,4\n'
)
ROWS = [("u1", "a", 1400000000), ("u1", "b,2", 1400000001), ("u2", "a", 1400000002)]


def read(path: Path, **options: Any) -> list[tuple[str, str, float]]:
    source = open_source(path, "table", ReadOptions(**options))
    frame = pl.concat(list(source.batches(Tally())))
    return [(str(u), str(i), float(t)) for u, i, t in frame.select("user", "item", "time").rows()]


def write(folder: Path, kind: str) -> Path:
    frame = pl.read_csv(CSV.encode())
    path = folder / f"log.{kind}"
    if kind == "parquet":
        frame.write_parquet(path)
    elif kind.startswith("jsonl"):
        text = frame.write_ndjson().encode()
        path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    elif kind.startswith("tsv"):
        frame.write_csv(path, separator="\t")
    else:
        path.write_bytes(gzip.compress(CSV.encode()) if kind.endswith("gz") else CSV.encode())
    return path


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "jsonl", "jsonl.gz", "parquet"])
def test_each_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    assert read(write(tmp_path, kind)) == ROWS


def test_windows_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode())
    assert read(path) == ROWS


def test_columns_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("buyer,thing,when\nx,y,2014-05-13\n")
    source = open_source(path, "table", ReadOptions(user="buyer", item="thing", time="when"))
    assert pl.concat(list(source.batches(Tally()))).row(0) == ("x", "y", "2014-05-13")


@pytest.mark.parametrize("pattern", ["2014-05-{:02d}", "2014-05-{:02d}T10:00:00Z"])
def test_dates_as_text_order_a_log(tmp_path: Path, pattern: str) -> None:
    days = [18, 11, 17, 12, 16, 13, 15, 14]
    rows = "".join(
        f"u,{item},{pattern.format(day)}\n" for item, day in zip("abcdefgh", days, strict=True)
    )
    (tmp_path / "log.csv").write_text("user,item,time\n" + rows)
    options = PrepareOptions(min_item_count=1, min_user_count=1, split="leave_last_out")
    prepare(open_source(tmp_path / "log.csv"), tmp_path / "out", options)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.item_keys(dataset.items) == list("bdfhgeca")
    first = datetime.fromisoformat(pattern.format(11)).replace(tzinfo=UTC)
    assert dataset.times[0] == first.timestamp() * 1_000_000


def test_a_log_without_times_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item\n" + "".join(f"u,{item}\n" for item in "hgfedcba"))
    source = open_source(path, "table", ReadOptions(time="none"))
    options = PrepareOptions(min_item_count=1, min_user_count=1, split="leave_last_out")
    prepare(source, tmp_path / "out", options)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.item_keys(dataset.items) == list("hgfedcba")


def test_a_folder_of_parts_is_read_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "interactions").mkdir()
    for number, row in enumerate(ROWS):
        frame = pl.DataFrame([row], schema=["user", "item", "time"], orient="row")
        frame.write_parquet(tmp_path / "interactions" / f"part-{number}.parquet")
    pl.DataFrame({"item": ["a"], "title": ["A"]}).write_parquet(tmp_path / "items.parquet")
    assert read(tmp_path) == ROWS
    source = open_source(tmp_path)
    assert (source.format, source.title, source.expected_rows) == ("table", "title", 3)


def test_quoted_line_breaks_in_content(tmp_path: Path) -> None:
    (tmp_path / "interactions.csv").write_text(CSV)
    (tmp_path / "items.csv").write_text('item_id,title\na,"two\nlines"\n')
    source = open_source(tmp_path)
    assert source.item_table is not None
    table = source.item_table(pl.Series(["a"]), Tally())
    assert table["title"].to_list() == ["two\nlines"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "tsv"])
def test_kinds_of_content_follow_from_types(tmp_path: Path, kind: str) -> None:
    table = pl.DataFrame(
        {
            "item": [f"i{n}" for n in range(6)],
            "title": ["x"] * 6,
            "brand": ["p", "q"] * 3,
            "code": [f"c{n}" for n in range(6)],
            "price": [1.5, None, 2.0, 3.0, 4.0, 5.0],
        }
    )
    expected = {
        "title": "text",
        "brand": "categorical",
        "price": "numeric",
    }  # code: every one differs
    if kind in ("jsonl", "parquet"):
        table = table.with_columns(tags=pl.Series([["a"]] * 6), vec=pl.Series([[0.5, 1.0]] * 6))
        expected |= {"tags": "multi_valued", "vec": "dense"}
    path = tmp_path / f"items.{kind}"
    if kind == "csv":
        table.write_csv(path)
    elif kind == "tsv":
        table.write_csv(path, separator="\t")
    else:
        getattr(table, {"jsonl": "write_ndjson", "parquet": "write_parquet"}[kind])(path)
    (tmp_path / "interactions.csv").write_text(CSV)
    source = open_source(tmp_path)
    assert {column.name: column.kind for column in source.item_columns} == expected


def test_content_files_and_kinds_may_be_named(tmp_path: Path) -> None:
    log = write(tmp_path, "csv")
    items = tmp_path / "catalogue.csv"
    items.write_text("item_id,genre\na,x;y\n")
    columns = (Column("genre", "multi_valued", ";"),)
    source = open_source(log, "table", ReadOptions(items=items, item_columns=columns))
    assert source.item_columns == columns
    assert source.item_table is not None
    assert source.item_table(pl.Series(["a"]), Tally()).to_dicts() == [{"key": "a", "genre": "x;y"}]


def test_mistakes_about_content_are_named(tmp_path: Path) -> None:
    log = write(tmp_path, "csv")
    with pytest.raises(ConfigError, match="--items"):
        open_source(log, "table", ReadOptions(item_columns=(Column("genre", "text"),)))
    items = tmp_path / "catalogue.csv"
    items.write_text("item_id,genre\na,x\n")
    with pytest.raises(ConfigError, match=r"no column 'price'.*item_id, genre"):
        open_source(
            log, "table", ReadOptions(items=items, item_columns=(Column("price", "numeric"),))
        )
    items.write_text("sku,genre\na,x\n")
    with pytest.raises(DataError, match="no column 'item_id'"):
        open_source(log, "table", ReadOptions(items=items))


def test_ratings_can_filter(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = "".join(f"u{u},i{i},{1400000000 + i},{i}\n" for u in range(10) for i in range(6))
    path.write_text("user,item,time,rating\n" + rows)
    options = PrepareOptions(min_rating=1)
    manifest = prepare(open_source(path), tmp_path / "out", options)
    assert manifest["reading"]["below_rating"] == 10
    assert manifest["accounting"]["staged"] == 50


@pytest.mark.parametrize("broken", ["", "{\n"], ids=["fast path", "line by line"])
def test_ids_of_json_are_strings_even_if_numbers(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"user": 12345678901234567, "item": 7, "time": 1400000000}\n'
        + broken
        + '{"user": "12345678901234567", "item": "7", "time": 1400000001.5}\n'
    )
    rows = read(path)
    assert rows == [
        ("12345678901234567", "7", 1400000000),
        ("12345678901234567", "7", 1400000001.5),
    ]


def test_named_columns_mean_a_table(tmp_path):
    log = tmp_path / "clicks.csv"
    log.write_text("buyer,sku,when\na,x,1\n")
    with pytest.raises(ConfigError, match="fits no format for certain"):
        open_source(log)
    named = ReadOptions(user="buyer", item="sku", time="when")
    assert open_source(log, options=named).format == "table"


@pytest.mark.parametrize("named", [{"user": "item"}, {"time": "user"}, {"rating": "timestamp"}])
def test_one_column_cannot_be_two_things(tmp_path, named):
    log = tmp_path / "clicks.csv"
    log.write_text("user,item,timestamp\na,x,1\n")
    with pytest.raises(ConfigError, match=r"column '\w+' of clicks.csv would be read as both"):
        open_source(log, options=ReadOptions(**named))
