"""Days with weights, sessions, impressions and context, against the whole log at once."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossbatch.data import (
    Dataset,
    PrepareOptions,
    ReadOptions,
    append,
    open_dataset,
    open_source,
    prepare,
)
from crossbatch.data.dataset.features import read_encoders
from crossbatch.data.prepare import sequences, staged_log
from crossbatch.errors import ConfigError, DataError

from ..event_logs import EVENT_WEIGHTS, READING

if TYPE_CHECKING:
    from pathlib import Path

NAMES = (
    *("user", "item", "time", "kind", "times", "visit", "shown"),
    *("device", "tags", "query", "price"),
)
ITEMS, WORDS = "abcdef", ("red", "blue", "green")

Row = tuple[Any, ...]
row = st.tuples(
    st.sampled_from("uvwxyz"),
    st.sampled_from(ITEMS),
    st.sampled_from(["view", "click", "click", "buy", "other"]),
    st.sampled_from([1.0, 2.0, 0.25]),
    st.sampled_from(["s1", "s2", None]),
    st.sampled_from(["a|b", "c|zz|d", "", None]),
    st.sampled_from(["phone", "tv", "", None]),
    st.sampled_from(["p|q", "q", "r|p", None]),
    st.sampled_from(["Red fox", "blue red", None]),
    st.sampled_from([1.0, 3.5, None]),
)


def table(folder: Path, name: str, rows: list[Row], first: int) -> Path:
    """Write a log whose times differ, so that there is one order."""
    timed = [(*r[:2], 1_600_000_000 + 700 * (first + n), *r[2:]) for n, r in enumerate(rows)]
    frame = pl.DataFrame(timed, schema=list(NAMES), orient="row", infer_schema_length=None)
    kinds = {"visit": pl.String, "shown": pl.String, "device": pl.String, "tags": pl.String}
    path = folder / f"{name}.parquet"
    frame.cast({**kinds, "query": pl.String, "price": pl.Float64}).write_parquet(path)
    return path


def options(**more: Any) -> PrepareOptions:
    chosen: dict[str, Any] = {"min_item_count": 1, "min_user_count": 1, "split": "leave_last_out"}
    return PrepareOptions(**chosen | {"event_weights": EVENT_WEIGHTS, "growing": True} | more)


def events(dataset: Dataset) -> list[tuple[Any, ...]]:
    """All that a dataset has of each event, in words, by user and time."""
    assert dataset.weight_offsets is not None
    assert dataset.session_places is not None
    assert dataset.shown is not None
    users = np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets))
    shown, bounds = dataset.shown
    lists = [tuple(dataset.item_keys(shown[a:b])) for a, b in pairwise(bounds)]
    columns = [
        dataset.user_keys(users),
        dataset.times.tolist(),
        dataset.item_keys(dataset.items),
        np.diff(dataset.weight_offsets).tolist(),
        dataset.session_places.tolist(),
        lists,
        *(in_words(dataset, name) for name in sorted(dataset.context_features)),
    ]
    return sorted(zip(*columns, strict=True), key=lambda each: each[:2])


def in_words(dataset: Dataset, name: str) -> list[Any]:
    """The values of a context feature, ids as the words that they stand for."""
    feature = dataset.context_features[name]
    encoder = read_encoders(dataset.path / "features/context")[name]
    if feature.kind == "numeric":
        scaled, missing = feature.values.astype(np.float64).T
        numbers = scaled * encoder.settings["std"] + encoder.settings["mean"]
        return [None if gone else round(x, 4) for x, gone in zip(numbers, missing, strict=True)]
    words = None if encoder.vocabulary is None else [None, *encoder.vocabulary]
    values = [int(v) if words is None else words[int(v)] for v in feature.values]
    if feature.offsets is None:
        return values
    ends = feature.offsets.tolist()
    return [tuple(values[a:b]) for a, b in pairwise(ends)]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(row, min_size=40, max_size=90),
    cuts=st.tuples(st.floats(0.4, 0.7), st.floats(0.75, 1.0)),
    least=st.integers(1, 4),
    pieces=st.booleans(),
)
def test_days_one_by_one_are_the_whole_log(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Row],
    cuts: tuple[float, float],
    least: int,
    pieces: bool,
) -> None:
    folder = tmp_path_factory.mktemp("days")
    first, second = (round(cut * len(rows)) for cut in cuts)
    parts = [(0, first), (first, second), (second, len(rows))]
    chosen = options(min_item_count=least, min_user_count=least)
    reading = ReadOptions(**READING)
    with pytest.MonkeyPatch.context() as patch:
        if pieces:
            patch.setattr(sequences, "BUCKET_ROWS", 7)
            patch.setattr(staged_log, "CHUNK_ROWS", 5)
        try:
            whole = table(folder, "whole", rows, 0)
            prepare(open_source(whole, "table", reading), folder / "whole", chosen)
            day = table(folder, "day0", rows[:first], 0)
            prepare(open_source(day, "table", reading), folder / "grown", chosen)
        except DataError:  # nothing is left of so few
            return
        base = open_dataset(folder / "grown")
        before = {name: in_ids(base, name) for name in base.context_features}
        for number, (start, end) in enumerate(parts[1:], 1):
            if any(each[2] != "other" for each in rows[start:end]):
                day = table(folder, f"day{number}", rows[start:end], start)
                source = open_source(day, "table", reading)
                append(source, folder / "grown", folder / "grown", overwrite=True)
    grown, expected = open_dataset(folder / "grown"), open_dataset(folder / "whole")
    grown.verify()
    assert events(grown) == events(expected)
    left = sum(each[2] == "other" for each in rows[: parts[-1][1]])
    assert expected.manifest["reading"]["other_events"] == left
    for name, earlier in before.items():  # old rows keep their numbers
        now = in_ids(grown, name)
        same = [key for key in earlier if name not in ("since_last", "session_items")]
        assert {key: now[key] for key in same} == {key: earlier[key] for key in same}


def in_ids(dataset: Dataset, name: str) -> dict[tuple[str, int], Any]:
    feature = dataset.context_features[name]
    users = dataset.user_keys(np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets)))
    values = feature.values.tolist()
    if feature.offsets is not None:
        ends = feature.offsets.tolist()
        values = [values[a:b] for a, b in pairwise(ends)]
    return dict(zip(zip(users, dataset.times.tolist(), strict=True), values, strict=True))


LOG: list[Row] = [
    ("u", "a", "click", 1.0, "s1", "a|b", "tv", "p", "Red fox", 1.0),
    ("u", "b", "view", 1.0, "s1", None, "tv", "q", None, 2.0),
    ("u", "a", "buy", 1.0, "s1", "b|zz", "phone", None, "hen", None),
    ("v", "b", "click", 1.0, "s2", "a", None, "p|q", "fox", 3.0),
    ("v", "a", "click", 1.0, "s2", "b", "tv", None, None, 3.0),
    ("v", "b", "click", 1.0, "s2", "b", "tv", None, None, 3.0),
] * 2


def test_other_columns_than_before_are_refused(tmp_path: Path) -> None:
    day = table(tmp_path, "day0", LOG, 0)
    prepare(open_source(day, "table", ReadOptions(**READING)), tmp_path / "data", options())
    later = table(tmp_path, "day1", LOG, 100)
    for without, message in (
        ({"session": None, "clock": ()}, r"with clock \['hour_of_day', .*\], got none"),
        ({"session": None, "clock": READING["clock"]}, "with session from a column, got none"),
        ({"impressions": None}, "with impressions from a column, got none"),
        ({"context": READING["context"][1:]}, "with context .*device.*: name the same columns"),
    ):
        source = open_source(later, "table", ReadOptions(**READING | without))
        with pytest.raises(ConfigError, match=message):
            append(source, tmp_path / "data", tmp_path / "out")
    source = open_source(later, "table", ReadOptions(**READING))
    with pytest.raises(ConfigError, match=r"event_weights is .*, but .* was prepared with"):
        append(source, tmp_path / "data", tmp_path / "out", {"event_weights": {"click": 2.0}})
    assert not (tmp_path / "out").exists()


def test_a_dataset_that_kept_nothing_is_refused(tmp_path: Path) -> None:
    day, later = table(tmp_path, "day0", LOG, 0), table(tmp_path, "day1", LOG, 100)
    reading = ReadOptions(**READING)
    chosen = options(growing=False)
    prepare(open_source(day, "table", reading), tmp_path / "data", chosen)
    with pytest.raises(DataError, match=r"does not keep what further days need .*--growing"):
        append(open_source(later, "table", reading), tmp_path / "data", tmp_path / "out")


def test_lists_of_second_files_grow(tmp_path: Path) -> None:
    """Each day has a file of impressions; an item of an old list may become one of the dataset."""
    reading = {"impressions": "items", "request": "request", "time_unit": "s"}
    days = [
        ([("u", "a", 1, "r1"), ("u", "b", 2, "r2"), ("u", "a", 3, "r1"), ("u", "b", 4, None)],
         [("r1", "a|x"), ("r2", "y"), ("r9", "b")]),
        ([("u", "x", 5, "r3"), ("v", "x", 6, "r4"), ("v", "a", 7, "r4")],
         [("r3", "x|y"), ("r4", "b|a")]),
    ]  # fmt: skip
    out = tmp_path / "data"
    for number, (log, shown) in enumerate(days):
        path, second = tmp_path / f"log{number}.csv", tmp_path / f"shown{number}.csv"
        names = ["user", "item", "time", "request"]
        pl.DataFrame(log, schema=names, orient="row").write_csv(path)
        pl.DataFrame(shown, schema=["request", "items"], orient="row").write_csv(second)
        source = open_source(path, "table", ReadOptions(**reading, impressions_file=second))
        if number == 0:
            prepare(source, out, options(event_weights=None, split="time", test_share=0.0))
        else:
            append(source, out, out, overwrite=True)
    dataset = open_dataset(out)
    dataset.verify()
    assert dataset.shown is not None
    shown, bounds = dataset.shown
    found = [dataset.item_keys(shown[a:b]) for a, b in pairwise(bounds)]
    # "y" is shown and never chosen; "x" was not known on the first day
    assert found == [["a", "x"], [], ["a", "x"], [], ["x"], ["b", "a"], ["b", "a"]]
