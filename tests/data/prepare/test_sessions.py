"""Sessions of a log: by a column, by pauses, and the histories within them."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from crossbatch.config import Recipe
from crossbatch.data import Dataset, PrepareOptions, ReadOptions, open_dataset, open_source, prepare
from crossbatch.data.prepare import sequences, staged_log
from crossbatch.errors import ConfigError
from crossbatch.training.build import draw_batches

if TYPE_CHECKING:
    from pathlib import Path

# user, item, minutes, session
LOG = [
    *[("u", item, 10 * place, "s1") for place, item in enumerate("abc")],
    *[("u", item, 100 + place, "s2") for place, item in enumerate("de")],
    ("u", "f", 500, None),
    *[("v", item, 100 + 40 * place, "s2") for place, item in enumerate("abcd")],
]


def prepared(folder: Path, reading: ReadOptions, **options: Any) -> Dataset:
    table = pl.DataFrame(LOG, schema=["user", "item", "time", "visit"], orient="row")
    table.with_columns(pl.col("time") * 60 + 1_000_000).write_parquet(folder / "log.parquet")
    chosen: dict[str, Any] = {"min_item_count": 1, "min_user_count": 1, "split": "time"}
    chosen |= {"valid_share": 0.0, "test_share": 0.0}
    source = open_source(folder / "log.parquet", "table", reading)
    prepare(source, folder / "data", PrepareOptions(**chosen | options))
    dataset = open_dataset(folder / "data")
    dataset.verify()
    return dataset


def places(dataset: Dataset) -> dict[str, list[int]]:
    assert dataset.session_places is not None
    users = dataset.user_keys(range(dataset.num_users))
    bounds = pairwise(dataset.offsets.tolist())
    return {
        user: dataset.session_places[a:b].tolist()
        for user, (a, b) in zip(users, bounds, strict=True)
    }


@pytest.mark.parametrize(
    ("session", "gap", "expected"),
    [
        ("visit", None, {"u": [0, 1, 2, 0, 1, 0], "v": [0, 1, 2, 3]}),
        (None, 30, {"u": [0, 1, 2, 0, 1, 0], "v": [0, 0, 0, 0]}),
        (None, 80, {"u": [0, 1, 2, 3, 4, 0], "v": [0, 1, 2, 3]}),
        ("visit", 30, {"u": [0, 1, 2, 0, 1, 0], "v": [0, 0, 0, 0]}),
    ],
)
def test_places_in_sessions(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    session: str | None,
    gap: float | None,
    expected: dict[str, list[int]],
) -> None:
    monkeypatch.setattr(sequences, "BUCKET_ROWS", 3)
    monkeypatch.setattr(staged_log, "CHUNK_ROWS", 4)
    assert places(prepared(tmp_path, ReadOptions(session=session), session_gap=gap)) == expected


def test_histories_within_a_session(tmp_path: Path) -> None:
    """A target that begins a session has the history of its user."""
    dataset = prepared(tmp_path, ReadOptions(session="visit"))
    names = dict(enumerate(dataset.item_keys(range(dataset.num_items + 1))))
    train = Recipe.from_dict({"train": {"histories": "session", "batch_size": 4}}).train
    found = set()
    for batch in islice(draw_batches(train, dataset), 60):
        users = dataset.user_keys(batch.user_ids.tolist())
        rows = zip(users, batch.history.tolist(), batch.item_ids.tolist(), strict=True)
        for user, history, item in rows:
            found.add((user, "".join(names[each] for each in history if each), names[item]))
    assert found == {
        *[("u", "a", "b"), ("u", "ab", "c"), ("u", "abc", "d"), ("u", "d", "e")],
        *[("u", "abcde", "f"), ("v", "a", "b"), ("v", "ab", "c"), ("v", "abc", "d")],
    }


def test_evaluation_follows(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, ReadOptions(session="visit"), split="leave_last_out")
    found = {}
    for batch in dataset.eval_batches("valid", histories="session"):
        for user, row in zip(
            dataset.user_keys(batch.user_ids.tolist()), batch.history, strict=True
        ):
            found[user] = "".join(dataset.item_keys(row[row > 0].tolist()))
    assert found == {"u": "d", "v": "ab"}


def test_the_items_of_the_session_are_context(tmp_path: Path) -> None:
    reading = ReadOptions(session="visit", clock=("session_items",))
    dataset = prepared(tmp_path, reading)
    feature = dataset.context_features["session_items"]
    expected = np.log1p(np.concatenate(list(places(dataset).values()))) - 1.0
    np.testing.assert_allclose(feature.values[:, 0], expected, rtol=1e-5, atol=1e-6)
    assert not feature.values[:, 1].any()


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs --session COLUMN or --session-gap"):
        prepared(tmp_path, ReadOptions(clock=("session_items",)))
    with pytest.raises(ConfigError, match="session_gap must be a number of minutes, got -1"):
        prepared(tmp_path, ReadOptions(), session_gap=-1)
    dataset = prepared(tmp_path, ReadOptions())
    with pytest.raises(ConfigError, match="prepare it with --session COLUMN"):
        dataset.batches(1, seed=0, histories="session")
    with pytest.raises(ConfigError, match="must be one of all, session"):
        dataset.eval_batches("valid", histories="visits")
