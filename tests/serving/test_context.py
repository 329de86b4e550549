"""Context of requests, from a log through training, evaluation and export to answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
import torch

from crossbatch.config import Recipe
from crossbatch.data import Column, Dataset, PrepareOptions, ReadOptions, open_dataset, open_source
from crossbatch.data import prepare as run_prepare
from crossbatch.errors import ConfigError
from crossbatch.serving import export_bundle
from crossbatch.serving import user_features as module
from crossbatch.serving.from_run import run_recommender
from crossbatch.serving.server.answers import Answer, answer_all
from crossbatch.serving.server.live_bundle import LiveBundle
from crossbatch.serving.server.messages import RecommendRequest
from crossbatch.training import fit
from crossbatch.training.run_folder import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.serving import Bundle

CONTEXT = (Column("device", "categorical"), Column("query", "text"), Column("speed", "numeric"))
QUERIES = ["cheap shoes", "warm hat", None]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Phones ask for even items, tablets for odd ones; histories tell nothing."""
    folder = tmp_path_factory.mktemp("context")
    rng = np.random.default_rng(0)
    users, events = 150, 14
    device = rng.integers(2, size=users * events)
    log = pl.DataFrame(
        {
            "user": np.repeat(np.arange(users), events),
            "item": 2 * rng.integers(20, size=users * events) + device,
            "time": 1_700_000_000 + rng.permutation(users * events) * 60,
            "device": pl.Series(["phone", "tablet"]).gather(device),
            "query": pl.Series(QUERIES).gather(rng.integers(3, size=users * events)),
            "speed": rng.normal(size=users * events).astype(np.float32),
        }
    )
    log.write_parquet(folder / "log.parquet")
    reading = ReadOptions(context=CONTEXT, clock=("hour_of_day", "since_last"))
    source = open_source(folder / "log.parquet", "table", reading)
    run_prepare(source, folder / "data", PrepareOptions(split="leave_last_out"))
    return open_dataset(folder / "data")


def run_of(dataset: Dataset, out: Path, context: list[str]) -> Path:
    model = {"name": "youtube_dnn", "dim": 16, "context": context}
    train = {"batch_size": 64, "max_steps": 300, "eval_every": 150, "lr": 0.01, "threads": 1}
    recipe = Recipe.from_dict({"model": model, "sampler": {"name": "in_batch"}, "train": train})
    fit(dataset, recipe, out)
    return out


@pytest.fixture(scope="module")
def run(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(dataset, tmp_path_factory.mktemp("run") / "with", ["*"])


@pytest.fixture(scope="module")
def bundle(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export_bundle(run, tmp_path_factory.mktemp("bundle") / "bundle")


def test_context_that_decides_is_learned(dataset: Dataset, run: Path, tmp_path: Path) -> None:
    """Who knows the device can leave out half of the items: at most twice the recall."""
    without = json.loads((run_of(dataset, tmp_path / "r", []) / "result.json").read_text())
    result = json.loads((run / "result.json").read_text())
    assert result["test"]["recall@20"] > 1.5 * without["test"]["recall@20"]


def test_answers_are_those_of_the_towers_on_the_stored_context(
    dataset: Dataset, run: Path, bundle: Bundle
) -> None:
    """Values as the log had them, sent with requests, against rows that training read."""
    saved = open_run(run)
    recommender = run_recommender(saved)
    length = saved.recipe.train.history_length
    batch = next(dataset.eval_batches("test", batch_size=40, history_length=length))
    assert batch.event_ids is not None
    with torch.no_grad():
        expected = saved.towers.users(batch.history, batch.user_ids, batch.event_ids)
    log = pl.read_parquet(dataset.path.parent / "log.parquet")
    keys = dataset.user_keys(batch.user_ids.tolist())
    requests = []
    for user, event in zip(keys, batch.event_ids.tolist(), strict=True):
        time = int(dataset.times[event])
        line = log.filter(user=int(user), time=time // 10**6).row(0, named=True)
        own = {name: line[name] for name in ("device", "query", "speed")}
        own["hour_of_day"] = time // 3_600_000_000 % 24
        own["since_last"] = (time - int(dataset.times[event - 1])) / 1e6
        requests.append(own)
    for answering in (recommender, bundle):
        found = answering.users(batch.history, context=requests)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    histories = [dataset.item_keys(row[row > 0].tolist()) for row in batch.history]
    lists = bundle.recommend(histories, 10, context=requests)
    again = recommender.recommend(histories, 10, context=requests)
    assert [[item.key for item in each.items] for each in lists] == [
        [item.key for item in each.items] for each in again
    ]


def test_the_device_of_a_request_decides_its_answer(bundle: Bundle) -> None:
    for device, rest in (("phone", 0), ("tablet", 1)):
        (answer,) = bundle.recommend([["4", "7"]], 10, context=[{"device": device}])
        kinds = [int(item.key) % 2 for item in answer.items]
        assert kinds.count(rest) >= 9


def test_a_request_over_http_has_context(bundle: Bundle) -> None:
    live = {"main": LiveBundle("main", bundle.path)}
    told = [{"device": "phone"}, {"device": "tablet"}, None, {"devise": "phone"}]
    requests = [RecommendRequest(history=["4", "7"], k=10, context=each) for each in told]
    *answers, wrong = answer_all(live, list(requests))
    parities = []
    for answer in answers:
        assert isinstance(answer, Answer)
        ids = [int(item["id"]) % 2 for item in json.loads(answer.body)["items"]]
        parities.append(sum(ids))
    assert parities[0] <= 1
    assert parities[1] >= 9
    assert isinstance(wrong, ConfigError)
    assert "did you mean 'device'" in str(wrong)
    facts = live["main"].describe()["context"]
    assert set(facts["device"]["values"]) == {"phone", "tablet"}


def test_the_clock_answers_where_a_request_does_not(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = torch.from_numpy(bundle.item_ids(["4", "7"]))[None]
    monkeypatch.setattr(module, "_clock", lambda _: {"hour_of_day": 13})
    silent = bundle.users(history)
    monkeypatch.setattr(module, "_clock", lambda _: {"hour_of_day": 5})
    torch.testing.assert_close(silent, bundle.users(history, context=[{"hour_of_day": 13}]))
    assert not torch.allclose(silent, bundle.users(history))
    # nothing was said of a user without a history, so the answer is what most choose
    (answer,) = bundle.recommend([[]], 5)
    assert answer.popular


def test_training_needs_the_rows_of_the_context(dataset: Dataset, run: Path) -> None:
    towers = open_run(run).towers
    batch = next(dataset.batches(4, seed=0))
    towers.train()
    with pytest.raises(ValueError, match="event_ids are required"):
        towers(batch.history, batch.item_ids, batch.user_ids)
