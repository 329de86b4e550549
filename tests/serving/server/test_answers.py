"""Batches of queries of all kinds: each gets the answer that it would have got alone."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from crossbatch.errors import ConfigError
from crossbatch.serving.server.answers import Answer, Similar, answer_all
from crossbatch.serving.server.live_bundle import LiveBundle
from crossbatch.serving.server.messages import RecommendRequest, Slot, UnknownItem

from .conftest import KEYS

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.serving.server.answers import Query

    from .running import RunningServer


@pytest.fixture(scope="module")
def bundles(mind_path: Path, youtube_path: Path) -> dict[str, LiveBundle]:
    paths = {"main": mind_path, "compare": youtube_path}
    return {slot: LiveBundle(slot, path) for slot, path in paths.items()}


def body(answer: Answer | Exception) -> Any:
    assert isinstance(answer, Answer)
    return json.loads(answer.body)


def without_scores(found: Any) -> Any:
    """Scores may differ in the last digit: a product's shape decides how it is rounded."""
    if isinstance(found, dict):
        return {
            key: round(value, 4) if key in {"score", "similarity"} else without_scores(value)
            for key, value in found.items()
        }
    return [without_scores(entry) for entry in found] if isinstance(found, list) else found


def queries(count: int) -> list[Query]:
    rng = random.Random(4)
    found: list[Query] = []
    for _ in range(count):
        slot: Slot = rng.choice(["main", "compare"])
        if rng.random() < 0.2:
            found.append(Similar(slot, rng.choice(KEYS), rng.choice([1, 5, 500])))
            continue
        history = rng.sample([*KEYS, "unknown"], rng.randint(0, 6))
        features = rng.choice([None, {}, {"age": 20}, {"country": "fr"}])
        found.append(
            RecommendRequest(
                bundle=slot,
                history=history,
                k=rng.choice([1, 5, 20, 500]),
                exclude_seen=rng.random() < 0.5,
                user_features=features if slot == "main" else None,
                explain=rng.random() < 0.5,
            )
        )
    return found


def test_answers_do_not_depend_on_other_queries(bundles: dict[str, LiveBundle]) -> None:
    asked = queries(120)
    together = answer_all(bundles, asked)
    for query, answer in zip(asked, together, strict=True):
        (alone,) = answer_all(bundles, [query])
        assert without_scores(body(answer)) == without_scores(body(alone))


def test_one_invalid_query_does_not_affect_the_others(bundles: dict[str, LiveBundle]) -> None:
    good = RecommendRequest(history=["m1"], k=5)
    bad = RecommendRequest(history=["m1"], k=5, user_features={"shoe size": 43})
    missing = Similar("main", "nobody", 3)
    first, second, third, fourth = answer_all(bundles, [good, bad, missing, good])
    assert isinstance(second, ConfigError)
    assert "shoe size" in str(second)
    assert isinstance(third, UnknownItem)
    assert body(first) == body(fourth)
    assert len(body(first)["items"]) == 5


def test_unknown_items_are_counted(bundles: dict[str, LiveBundle]) -> None:
    (answer,) = answer_all(bundles, [RecommendRequest(history=["m1", "x", "y"], k=2)])
    assert isinstance(answer, Answer)
    assert answer.num_unknown == 2


def test_features_are_enough_without_a_history(bundles: dict[str, LiveBundle]) -> None:
    """Without a history there is no reason to give, but there is a list for every interest."""
    query = RecommendRequest(history=[], k=5, user_features={"age": 44}, explain=True)
    found = body(answer_all(bundles, [query])[0])
    assert found["popular"] is False
    assert [item["because"] for item in found["items"]] == [None] * 5
    assert [entry["near"] for entry in found["interests"]] == [[], [], []]


@pytest.mark.parametrize("history", [["m1", "m4"], []])
@pytest.mark.parametrize("slot", ["main", "compare"])
def test_excluded_items_are_left_out_and_the_rest_moves_up(
    server: RunningServer, history: list[str], slot: str
) -> None:
    query = {"history": history, "k": 60, "explain": True, "bundle": slot}
    every = [item["id"] for item in server.ask("/recommend", query).json["items"]]
    banned = every[:3] + every[5:6]
    reply = server.ask("/recommend", query | {"k": 10, "exclude": [*banned, "nobody"]}).json
    assert [item["id"] for item in reply["items"]] == [x for x in every if x not in banned][:10]
    for interest in reply.get("interests", []):
        assert not {item["id"] for item in interest["items"]} & set(banned)
