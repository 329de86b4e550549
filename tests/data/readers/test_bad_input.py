"""Each fault of a source is a clear error or a counted skip, and never a half-written dataset."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from crossbatch.data import PrepareOptions, ReadOptions, Source, open_dataset, open_source, prepare
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path

SourceOf = Callable[..., Source]
GOOD = [
    {"user": f"u{user}", "item": f"i{item}", "time": 1_400_000_000 + item}
    for user in range(20)
    for item in range(6)
]


def json_line(**changes: Any) -> bytes:
    return json.dumps({"user": "u0", "item": "i0", "time": 1_400_000_000, **changes}).encode()


def write_log(path: Path, *more: bytes) -> Path:
    lines = [json.dumps(row).encode() for row in GOOD]
    lines[60:60] = more  # a fault stands in the middle
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def run(path: Path, limit: float = 0.001, **options: Any) -> dict[str, Any]:
    chosen = PrepareOptions(max_bad_lines=limit, **options)
    return prepare(open_source(path), path.parent / "out", chosen)


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if "out" in path.name]


FAULTS = {
    "broken JSON": (b'{"user": "u0", "item":', "line is not JSON"),
    "not an object": (b"[1, 2]", "line is no JSON object"),
    "wrong encoding": (
        b'{"user": "\xff\xfe", "item": "i0", "time": 1400000000}',
        "line is not UTF-8",
    ),
    "null user": (json_line(user=None), "no user id"),
    "empty item": (json_line(item=""), "no item id"),
    "list for a user": (json_line(user=["u1"]), "id is a list, an object or a truth value"),
    "object for an item": (json_line(item={}), "id is a list, an object or a truth value"),
    "truth for a user": (json_line(user=True), "id is a list, an object or a truth value"),
    "missing field": (b'{"user": "u0", "time": 1400000000}', "no item id"),
    "no time": (json_line(time=None), "time missing, unreadable or absurd"),
    "negative time": (json_line(time=-4), "time missing, unreadable or absurd"),
    "absurd time": (json_line(time=10**15), "time missing, unreadable or absurd"),
    "mixed unit": (json_line(time=1_400_000_000_000), "time missing, unreadable or absurd"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_lines_are_counted_and_skipped_within_the_limit(tmp_path: Path, fault: str) -> None:
    line, reason = FAULTS[fault]
    manifest = run(write_log(tmp_path / "log.jsonl", line), limit=1)
    assert manifest["reading"]["bad_lines"] == {reason: 1}
    assert manifest["reading"]["lines"] == len(GOOD) + 1
    assert manifest["accounting"]["staged"] == manifest["counts"]["interactions"] == len(GOOD)


@pytest.mark.parametrize("fault", FAULTS)
def test_too_many_bad_lines_stop_with_reason_example_and_remedy(tmp_path: Path, fault: str) -> None:
    line, reason = FAULTS[fault]
    path = write_log(tmp_path / "log.jsonl", line)
    with pytest.raises(DataError, match=rf"1 of 121 lines .*{reason}.*--max-bad-lines"):
        run(path)  # one in 121 is more than 0.1 %
    assert left_behind(tmp_path) == []


def test_the_limit_is_a_share_or_a_number(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl", b"?", b"?")
    assert run(path, limit=0.02)["reading"]["bad_lines"] == {"line is not JSON": 2}
    with pytest.raises(DataError, match="2 of 122"):
        prepare(open_source(path), tmp_path / "other", PrepareOptions(max_bad_lines=1))


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_truncated_gzip_is_an_error(tmp_path: Path, keep: float) -> None:
    whole = gzip.compress(write_log(tmp_path / "log.jsonl").read_bytes())
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(DataError, match="damaged or cut short"):
        prepare(open_source(path, "table"), tmp_path / "out")
    assert left_behind(tmp_path) == []


def test_a_damaged_gzip_is_an_error(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(write_log(tmp_path / "log.jsonl").read_bytes()))
    whole[len(whole) // 2] ^= 0xFF
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(bytes(whole))
    with pytest.raises(DataError, match=r"damaged or cut short|cannot be used"):
        prepare(open_source(path, "table"), tmp_path / "out")


def test_a_missing_column_is_named_with_the_choices(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("who,item,time\na,b,1\n")
    with pytest.raises(ConfigError, match=r"no user column.*--user.*who, item, time"):
        open_source(path, "table")
    with pytest.raises(ConfigError, match="buyer"):
        open_source(path, "table", ReadOptions(user="buyer"))


def test_a_later_part_without_the_column_is_an_error(tmp_path: Path) -> None:
    frame = pl.DataFrame(GOOD)
    (tmp_path / "log").mkdir()
    frame.write_parquet(tmp_path / "log" / "1.parquet")
    frame.rename({"item": "thing"}).write_parquet(tmp_path / "log" / "2.parquet")
    with pytest.raises(DataError, match=r"2\.parquet"):
        prepare(open_source(tmp_path / "log"), tmp_path / "out")
    assert left_behind(tmp_path) == []


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "log.parquet").write_text("hello")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        open_source(tmp_path / "log.parquet", "table")


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(DataError, match=r"empty|does not begin"):
        open_source(tmp_path / name, "table")


def test_a_header_without_rows(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,time\n")
    with pytest.raises(DataError, match="no interactions were read"):
        prepare(open_source(tmp_path / "log.csv"), tmp_path / "out")
    assert left_behind(tmp_path) == []


def test_filters_that_leave_nothing_say_so(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl")
    with pytest.raises(DataError, match=r"no interactions are left of 120.*--min-user-count"):
        run(path, min_user_count=100)
    assert left_behind(tmp_path) == []


def test_users_left_with_too_few_events_are_counted(tmp_path: Path) -> None:
    more = [json_line(user="short", item=f"i{n}") for n in range(4)]
    manifest = run(write_log(tmp_path / "log.jsonl", *more))
    assert manifest["accounting"]["dropped_by_user"] == 4
    assert manifest["counts"]["users"] == 20


def test_sequences_too_short_for_a_sample_say_so(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("user,item,time\n" + "".join(f"u{n},i,{n}\n" for n in range(20)))
    with pytest.raises(DataError, match="no training user has two interactions"):
        prepare(open_source(log), tmp_path / "out", PrepareOptions(min_user_count=1))
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("stage", ["reading", "sorting", "content", "checksums"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, stage: str) -> None:
    def interrupt(now: str, _done: int, _total: int | None) -> None:
        if now == stage:
            raise KeyboardInterrupt

    path = write_log(tmp_path / "log.jsonl")
    with pytest.raises(KeyboardInterrupt):
        prepare(open_source(path), tmp_path / "out", progress=interrupt)
    assert left_behind(tmp_path) == []


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl")
    run(path)
    before = open_dataset(tmp_path / "out").manifest
    with pytest.raises(DataError, match="already exists"):
        run(path)
    assert open_dataset(tmp_path / "out").manifest == before


def test_a_rating_filter_needs_ratings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rating"):
        run(write_log(tmp_path / "log.jsonl"), min_rating=4)


def test_a_user_in_two_parts_of_a_given_split_is_an_error(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"x_{part}.txt").write_text("".join(f"7,{n},{n}\n" for n in range(6)))
    with pytest.raises(DataError, match="two of the train, valid and test"):
        prepare(open_source(tmp_path), tmp_path / "out")
