"""The study of daily training: windows of a log, and the page's table against the records."""

import itertools
import json

import polars as pl
import pytest

from daily import RECORDS, TITLES, _windows, moments_table, table

from .conftest import BENCHMARKS


def test_windows_are_days_of_equal_size_that_keep_order_and_ties():
    times = [7 * (number % 400) for number in range(800)]  # each of them twice
    cut = _windows(pl.DataFrame({"timestamp": times, "user": range(800)}), 4)
    cut = cut.sort("timestamp", "user")
    assert cut["day"].to_list() == sorted(cut["day"].to_list())
    sizes = cut["day"].value_counts().sort("day")["count"].to_list()
    assert sizes == pytest.approx([200] * 4, abs=4)
    days = (cut["time"] // (86_400 * 1_000_000) - 15_000).to_list()
    assert days == cut["day"].to_list()
    pairs = list(zip(cut["timestamp"], cut["time"], strict=True))
    for (a, x), (b, y) in itertools.pairwise(pairs):
        assert (a == b) == (x == y)
        assert x <= y


def test_the_page_shows_the_table_of_the_records():
    page = (BENCHMARKS.parent / "docs" / "daily.md").read_text()
    records = {name: json.loads((RECORDS / f"{name}.json").read_text()) for name in TITLES}
    assert not any(record["quick"] for record in records.values())
    assert table({name: record["days"] for name, record in records.items()}) in page
    assert moments_table(json.loads((RECORDS / "moments.json").read_text())) in page


def test_moments_are_compared_by_means_over_days_and_seeds():
    def day(value):
        row = {"recall@20": value, "ndcg@20": value / 2, "bytes": 3e6}
        return {"anew": row, "keep": row | {"recall@20": 2 * value, "bytes": 9e6}}

    lines = moments_table({"books": {"0": [day(0.1), day(0.2)], "1": [day(0.3), day(0.4)]}})
    assert lines.splitlines()[2:] == [
        "| books | 2 × 2 | anew | 25.00 % | 12.50 % | 3.0 |",
        "| books | 2 × 2 | keep | 50.00 % | 12.50 % | 9.0 |",
    ]


def test_the_table_has_means_over_all_days_but_the_first():
    def day(value):
        row = {"recall@20": value, "ndcg@20": value / 2, "cpu_seconds": 10 * value}
        return dict.fromkeys(("scratch", "warm", "stale", "popular"), row)

    line = table({"x": [day(0.9), day(0.1), day(0.3)]}).splitlines()[2]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["x", "2", "scratch", "20.00 %", "10.00 %", "30.00 %", "2.0"]
