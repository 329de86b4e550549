"""`filter`, `candidates` and `exclude` over HTTP, and columns that change while the server runs."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from crossbatch.serving import open_bundle
from crossbatch.serving.bundle.filter_columns import set_columns
from crossbatch.serving.server.answers import Answer, answer_all
from crossbatch.serving.server.live_bundle import LiveBundle
from crossbatch.serving.server.messages import RecommendRequest

from .conftest import KEYS
from .running import RunningServer, wait_until
from .test_reload import FAST

if TYPE_CHECKING:
    from pathlib import Path

HISTORY = ["i7", "i10"]
SPACE = set(KEYS[::3])


def ids(reply: Any) -> list[str]:
    return [item["id"] for item in reply["items"]]


def test_only_what_may_be_shown_is_shown(server: RunningServer) -> None:
    body: dict[str, Any] = {"history": HISTORY, "k": 60, "filter": {"genre": "Space"}}
    everything = ids(server.ask("/recommend", {"history": HISTORY, "k": 60}).json)
    found = ids(server.ask("/recommend", body).json)
    assert found == [key for key in everything if key in SPACE]
    recent = {**body, "filter": {"genre": ["Space"], "year": {">=": 1990}}, "exclude": ["i45"]}
    expected = [key for key in found if KEYS.index(key) >= 40 and key != "i45"]
    assert ids(server.ask("/recommend", recent).json) == expected
    some = {**body, "candidates": ["i9", "i11", "unheard of", "i12"]}
    assert ids(server.ask("/recommend", some).json) == [
        key for key in found if key in {"i9", "i12"}
    ]
    assert ids(server.ask("/recommend", {**body, "candidates": []}).json) == []


def test_lists_of_single_interests_are_filtered_too(server: RunningServer) -> None:
    body = {"history": HISTORY, "explain": True, "filter": {"genre": {"not": "Space"}}}
    reply = server.ask("/recommend", body).json
    assert len(reply["interests"]) == 3
    for entry in (reply, *reply["interests"]):
        assert entry["items"]
        assert not SPACE & set(ids(entry))


def test_a_user_of_whom_nothing_is_known_gets_popular_items_that_match(
    server: RunningServer,
) -> None:
    reply = server.ask("/recommend", {"history": [], "k": 50, "filter": {"genre": "Space"}}).json
    assert reply["popular"]
    assert set(ids(reply)) == SPACE


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"filter": {"colour": "red"}}, "filter: there is no column 'colour'"),
        ({"filter": {"year": {"<": "old"}}}, "filter.year must be an integer, got 'old'"),
        ({"filter": [1]}, "filter: Input should be"),
        ({"filter": {f"c{number}": 1 for number in range(101)}}, "filter: "),
        ({"candidates": "i7"}, "candidates: "),
        ({"candidates": ["i7", 8]}, "candidates.1: "),
        ({"exclude": [""]}, "exclude.0: "),
    ],
)
def test_bad_values_are_refused_by_name(
    server: RunningServer, values: dict[str, Any], words: str
) -> None:
    reply = server.ask("/recommend", {"history": HISTORY, **values})
    assert reply.status == 422
    assert reply.message.startswith(words)


def test_health_lists_the_columns(server: RunningServer) -> None:
    facts = server.ask("/health").json["bundles"]["main"]
    assert facts["filters"] == {"genre": "text", "year": "integer", "in_stock": "boolean"}


def test_each_query_of_a_batch_gets_the_answer_that_it_would_get_alone(mind_path: Path) -> None:
    bundles = {"main": LiveBundle("main", mind_path)}
    filters: list[dict[str, Any]] = [
        {},
        {"filter": {"genre": "Love"}},
        {"filter": {"genre": "nothing"}},
        {"filter": {"size": 1}},
        {"candidates": ["i7", "i20"]},
        {"filter": {"genre": "Love"}, "candidates": ["i7", "i20"]},
    ]
    queries = [
        RecommendRequest(history=[KEYS[place], "i10"], k=5, **filters[place % len(filters)])
        for place in range(30)
    ]

    def seen(answer: Answer | Exception) -> object:
        return ids(json.loads(answer.body)) if isinstance(answer, Answer) else str(answer)

    together = answer_all(bundles, queries)
    assert [seen(answer) for answer in together] == [
        seen(answer_all(bundles, [query])[0]) for query in queries
    ]
    assert "no column 'size'" in str(together[3])


def test_new_values_are_taken_over_while_the_server_runs(mind_path: Path, tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(mind_path, place)
    body = {"history": HISTORY, "k": 60, "filter": {"in_stock": True}}
    with RunningServer(place, "--watch", before=FAST) as running:
        before = running.ask("/recommend", body).json
        assert ids(before) == []
        stock = pl.DataFrame({"item": ["i20", "i21"], "in_stock": [True, False]})
        changed = set_columns(open_bundle(place), stock, place, overwrite=True)
        assert before["bundle"]["version"] != changed.version
        wait_until(lambda: ids(running.ask("/recommend", body).json) == ["i20"])
        assert running.ask("/recommend", body).json["bundle"]["version"] == changed.version
