from __future__ import annotations

from datetime import date, datetime

import polars as pl
import pytest

from crossbatch.data.prepare.staged_log import TimeReader
from crossbatch.data.readers.source import Tally
from crossbatch.errors import ConfigError

MOMENT = 1_400_000_000_000_000  # 2014-05-13T16:53:20, microseconds


def read(values: list[object], unit: str = "auto") -> list[int | None]:
    return TimeReader(unit, Tally()).read(pl.Series(values, strict=False)).to_list()


@pytest.mark.parametrize("value", [1_400_000_000, 1_400_000_000_000, MOMENT, MOMENT * 1000])
def test_the_unit_of_numbers_is_inferred_from_their_size(value: int) -> None:
    assert read([value, value]) == [MOMENT, MOMENT]


@pytest.mark.parametrize("value", ["1400000000", " 1400000000.0 ", 1.4e9])
def test_numbers_may_be_text_or_floats(value: object) -> None:
    assert read([value]) == [MOMENT]


@pytest.mark.parametrize(
    "text",
    [
        "2014-05-13 16:53:20",
        "2014-05-13T16:53:20Z",
        "2014-05-13T16:53:20.000+00:00",
        "2014-05-13T21:53:20+05:00",
        "2014-05-13 22:23:20.000+0530",
        "2014-05-13T13:23:20-03:30",
        "2014-05-13 14:53:20 -02",
        "2014/05/13 17:23:20+00:30",
    ],
)
def test_dates_as_text(text: str) -> None:
    assert read([text]) == [MOMENT]


def test_typed_dates() -> None:
    assert read([datetime(2014, 5, 13, 16, 53, 20)]) == [MOMENT]
    assert read([date(1970, 1, 2)]) == [86_400_000_000]
    assert read(["1970-01-02"]) == [86_400_000_000]


def test_what_is_no_time_becomes_null() -> None:
    assert read([1_400_000_000, -5, None, float("nan"), float("inf")]) == [MOMENT, *[None] * 4]
    assert read(["1400000000", "yesterday", ""]) == [MOMENT, None, None]
    assert read(["2014-05-13", "13.5.", "1969-12-31"]) == [
        MOMENT // 86_400_000_000 * 86_400_000_000,
        None,
        None,
    ]


def test_mixed_units_are_refused_either_way() -> None:
    seconds, millis = 1_400_000_000, 1_400_000_000_000
    assert read([seconds, seconds, millis]) == [MOMENT, MOMENT, None]
    assert read([millis, millis, seconds]) == [MOMENT, MOMENT, None]


def test_positions_are_taken_as_they_are() -> None:
    assert read([0, 1, 7], "order") == [0, 1, 7]


def test_the_chosen_unit_is_noted_and_kept() -> None:
    tally = Tally()
    reader = TimeReader("auto", tally)
    reader.read(pl.Series([1_400_000_000_000]))
    assert tally.notes == ["times read as ms since 1970"]
    assert reader.read(pl.Series([5])).to_list() == [None]  # not seconds in the next batch


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match="auto, s, ms, us, ns, order"):
        TimeReader("days", Tally())
