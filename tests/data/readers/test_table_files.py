"""Logs in parts: Hive's folders, patterns, and parts that do not agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from crossbatch.data import PrepareOptions, ReadOptions, open_dataset, open_source, prepare
from crossbatch.data.readers.source import Tally
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

LOOSE = PrepareOptions(min_item_count=1, min_user_count=1, split="leave_last_out")
DAYS = {"2024-01-01": "abc", "2024-01-02": "ab"}


def write(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(columns).write_parquet(path)


def lake(folder: Path) -> Path:
    """One file a day, in which the day is the folder's, and what Spark leaves beside them."""
    for day, items in DAYS.items():
        write(folder / f"day={day}" / "part-0.parquet", user=[7] * len(items), item=list(items))
        (folder / f"day={day}" / ".part-0.parquet.crc").touch()
    write(folder / "_temporary" / "part-9.parquet", user=[8], item=["z"])
    (folder / "_SUCCESS").touch()
    return folder


def rows(source: Path, **options: Any) -> list[tuple[Any, ...]]:
    opened = open_source(source, "table", ReadOptions(**options))
    frame = pl.concat(list(opened.batches(Tally())))
    return frame.select("user", "item", "time").rows()


def test_folders_may_name_a_column(tmp_path: Path) -> None:
    expected = [(7, item, day) for day, items in DAYS.items() for item in items]
    assert rows(lake(tmp_path / "lake"), time="day") == expected


def test_a_pattern_chooses_partitions(tmp_path: Path) -> None:
    root = lake(tmp_path / "lake")
    expected = [(7, item, "2024-01-02") for item in "ab"]
    assert rows(root / "day=*-02", time="day") == expected
    assert rows(root / "*-02" / "*.parquet", time="day") == expected
    with pytest.raises(DataError, match=r"day=2025\* matches no file"):
        open_source(root / "day=2025*")


def test_values_of_folders_are_unescaped_and_may_be_null(tmp_path: Path) -> None:
    write(tmp_path / "item=a%2Fb c" / "x.parquet", user=["u"], time=[1])
    write(tmp_path / "item=__HIVE_DEFAULT_PARTITION__" / "x.parquet", user=["u"], time=[1])
    assert sorted(rows(tmp_path), key=str) == [("u", "a/b c", 1), ("u", None, 1)]


def test_a_files_own_column_wins_over_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "item=x" / "1.parquet", user=["u"], item=["own"], time=[1])
    assert rows(tmp_path) == [("u", "own", 1)]


def test_a_folder_of_csv_parts_may_name_a_column(tmp_path: Path) -> None:
    (tmp_path / "day=2024-01-01").mkdir()
    (tmp_path / "day=2024-01-01" / "log.csv").write_text("user,item\nu,a\n")
    assert rows(tmp_path, time="day") == [("u", "a", "2024-01-01")]


def test_parts_give_the_dataset_of_the_whole(tmp_path: Path) -> None:
    whole = pl.DataFrame(
        {"user": [n % 5 for n in range(60)], "item": [n % 7 for n in range(60)]}
    ).with_columns(time=pl.int_range(60))
    whole.write_parquet(tmp_path / "whole.parquet")
    for number, part in enumerate(whole.iter_slices(11)):
        write(tmp_path / "lake" / f"hour={number}" / "part.parquet", **part.to_dict())
    found = [
        prepare(open_source(tmp_path / name), tmp_path / f"{name}.out", LOOSE)
        for name in ("whole.parquet", "lake")
    ]
    assert found[0]["checksum"] == found[1]["checksum"]
    assert list(found[1]["source"]["files"]) == [f"hour={n}/part.parquet" for n in range(6)]
    assert open_dataset(tmp_path / "lake.out").num_users == 5


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"user": [7.0], "item": ["a"], "time": [1]}, "'user' is Int64 in .* but Float64 in .*b/"),
        ({"user": ["7"], "item": ["a"], "time": [1]}, "'user' is Int64 in .* but String in .*b/"),
        ({"user": [7], "item": ["a"], "time": ["1"]}, "'time' is Int64 in .* but String in .*b/"),
        ({"user": [7], "item": ["a"]}, r"b/x\.parquet has no column 'time', unlike .*user, item"),
    ],
    ids=["ids with a point", "ids as text", "times as text", "no time"],
)
def test_parts_that_do_not_agree_are_named(
    tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    write(tmp_path / "lake" / "a" / "x.parquet", user=[7], item=["a"], time=[1])
    write(tmp_path / "lake" / "b" / "x.parquet", **other)
    with pytest.raises(DataError, match=message) as raised:
        open_source(tmp_path / "lake", "table")
    assert "\n" not in str(raised.value)


def test_widths_of_numbers_and_empty_columns_may_differ(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", user=pl.Series([7], dtype=pl.Int32), item=["a"], time=[1])
    write(tmp_path / "2.parquet", user=[7], item=["a"], time=[1.5])
    write(tmp_path / "3.parquet", user=[7], item=["a"], time=pl.Series([None], dtype=pl.Null))
    source = open_source(tmp_path, "table")
    assert [len(list(part(Tally()))) for part in source.parts] == [1, 1, 1]


def test_folders_without_a_log(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no file with a suffix of"):
        open_source(tmp_path / "empty", "table")
    write(tmp_path / "content" / "items.parquet", item=["a"], title=["A"])
    with pytest.raises(DataError, match="content holds content tables but no log"):
        open_source(tmp_path / "content", "table")


def test_an_order_of_files_is_no_time_to_read_apart(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", user=[7, 7], item=["a", "b"])
    write(tmp_path / "2.parquet", user=[7], item=["c"])
    assert rows(tmp_path, time="none") == [(7, "a", 0), (7, "b", 1), (7, "c", 2)]
    assert open_source(tmp_path, "table", ReadOptions(time="none")).parts == ()
