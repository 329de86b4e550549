"""Context of events: every interaction has the values of its line, however the log is sorted."""

from __future__ import annotations

import csv
import math
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from crossbatch.data import Column, Dataset, PrepareOptions, ReadOptions, open_dataset, open_source
from crossbatch.data import prepare as run_prepare
from crossbatch.data.dataset.features import Feature, read_encoders
from crossbatch.data.prepare import sequences, staged_log
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.data.dataset.encoders import Encoder

CONTEXT = (
    Column("device", "categorical"),
    Column("query", "text"),
    Column("tags", "multi_valued", separator=";"),
    Column("battery", "numeric"),
)
CLOCK = ("hour_of_day", "day_of_week", "since_last")
HEADER = ("user", "item", "timestamp", "device", "query", "tags", "battery")
START = 1_700_000_000  # Tuesday, 2023-11-14 22:13:20


def make_log(lines: int = 60) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    return [
        (
            f"u{rng.integers(7)}",
            f"i{rng.integers(9)}",
            START + int(rng.integers(10**6)) * 10 + number % 10,  # no two of one moment
            ["phone", "tablet", " tv ", ""][rng.integers(4)],
            ["red shoes", "blue  shoes!", "", "hat"][rng.integers(4)],
            ["a;b", "c", "", "b"][rng.integers(4)],
            ["", "0.5", "80", "-3e2", "7", "empty"][rng.integers(6)],
        )
        for number in range(lines)
    ]


def prepared(folder: Path, rows: list[tuple[Any, ...]], **reading: Any) -> Dataset:
    with (folder / "log.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    options = ReadOptions(**({"context": CONTEXT, "clock": CLOCK} | reading))
    source = open_source(folder / "log.csv", "table", options)
    run_prepare(source, folder / "data", PrepareOptions(min_item_count=1, min_user_count=1))
    return open_dataset(folder / "data")


def value_of(feature: Feature, encoder: Encoder, row: int) -> Any:
    """What a row of a feature stands for."""
    if feature.offsets is not None:
        ids = feature.values[feature.offsets[row] : feature.offsets[row + 1]]
        return sorted(ids.tolist())
    if feature.kind == "numeric":
        value, missing = feature.values[row]
        return None if missing else value * encoder.settings["std"] + encoder.settings["mean"]
    code = int(feature.values[row])
    return None if code == 0 else encoder.known_values()[code - 1]


@pytest.mark.parametrize("rows", [3, 1 << 20])
def test_every_interaction_has_the_context_of_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(sequences, "BUCKET_ROWS", rows)
    monkeypatch.setattr(staged_log, "CHUNK_ROWS", rows)
    log = make_log()
    dataset = prepared(tmp_path, log)
    dataset.verify()
    lines = {(line[0], line[2]): line for line in log}
    encoders = read_encoders(dataset.path / "features/context")
    tags = encoders["tags"].known_values().to_list()
    words = {"red", "blue", "shoes", "hat"}
    numbers = {word: encoders["query"].encode(pl.Series([word])).values.tolist() for word in words}
    users = dataset.user_keys(range(dataset.num_users))
    seen = 0
    for user, start, end in zip(users, dataset.offsets[:-1], dataset.offsets[1:], strict=True):
        previous = None
        for row in range(start, end):
            time = int(dataset.times[row]) // 10**6
            line = lines[user, time]
            assert dataset.item_keys([dataset.items[row]]) == [line[1]]
            found = {
                name: value_of(feature, encoders[name], row)
                for name, feature in dataset.context_features.items()
            }
            assert found["device"] == (line[3].strip() or None)
            expected = [numbers[word][0] for word in words if word in line[4]]
            assert found["query"] == sorted(expected)
            assert [tags[code - 1] for code in found["tags"]] == sorted(
                filter(None, line[5].split(";")), key=tags.index
            )
            battery = None if line[6] in ("", "empty") else float(line[6])
            assert found["battery"] == (battery and pytest.approx(battery, rel=1e-4))
            moment = datetime.fromtimestamp(time, tz=UTC)
            assert found["hour_of_day"] == str(moment.hour)
            assert found["day_of_week"] == str(moment.weekday())
            since = None if previous is None else math.log1p(time - previous)
            assert found["since_last"] == (since and pytest.approx(since, rel=1e-5))
            previous, seen = time, seen + 1
    assert seen == len(log)


def test_statistics_are_those_of_the_whole_log(tmp_path: Path) -> None:
    log = make_log()
    dataset = prepared(tmp_path, log)
    settings = read_encoders(dataset.path / "features/context")["battery"].settings
    known = np.array([float(line[6]) for line in log if line[6] not in ("", "empty")])
    assert settings["mean"] == pytest.approx(known.mean())
    assert settings["std"] == pytest.approx(known.std())
    summary = dataset.manifest["features"]["context"]
    assert summary["battery"]["coverage"] == pytest.approx(len(known) / len(log), abs=1e-6)
    assert summary["device"]["num_values"] == 4


def test_batches_point_to_the_context_of_their_targets(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, make_log())
    for batch in islice(dataset.batches(3, seed=0), 20):
        assert batch.event_ids is not None
        assert dataset.items[batch.event_ids.numpy()].tolist() == batch.item_ids.tolist()
        owner = np.searchsorted(dataset.offsets, batch.event_ids.numpy(), side="right") - 1
        assert owner.tolist() == batch.user_ids.tolist()
    for evaluated in dataset.eval_batches("test"):
        assert evaluated.event_ids is not None
        first = [targets[0] for targets in evaluated.targets]
        assert dataset.items[evaluated.event_ids.numpy()].tolist() == first


def test_a_dataset_without_context_has_no_rows_of_it(make_dataset: Any) -> None:
    dataset = make_dataset([("u", item, time) for time, item in enumerate("abcab")], split="time")
    assert not dataset.context_features
    assert next(dataset.batches(1, seed=0)).event_ids is None


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ({"context": (Column("device", "dense"),)}, "'dense'"),
        ({"context": (Column("color", "categorical"),)}, "no column 'color' for --context"),
        ({"clock": ("minute",)}, "not built in"),
        ({"context": (CONTEXT[0], CONTEXT[0])}, "rename one"),
        ({"time": "none"}, "needs times"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, reading: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, make_log(), **reading)


def test_text_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not numbers"):
        prepared(tmp_path, make_log(), context=(Column("query", "numeric"),))
