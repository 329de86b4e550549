"""Valid requests, from a real client to a real server."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import torch

from .conftest import KEYS, SPECIAL
from .running import wait_until

if TYPE_CHECKING:
    from crossbatch.serving import Bundle

    from .running import RunningServer

COMMA = "a,b/c?d=1&e"


@pytest.mark.parametrize("slot", ["main", "compare"])
@pytest.mark.parametrize("exclude_seen", [True, False])
def test_lists_equal_those_of_the_bundle(
    server: RunningServer, mind: Bundle, youtube: Bundle, slot: str, exclude_seen: bool
) -> None:
    bundle = {"main": mind, "compare": youtube}[slot]
    history = [KEYS[7], KEYS[10], COMMA]
    body = {"history": history, "k": 15, "exclude_seen": exclude_seen, "bundle": slot}
    reply = server.ask("/recommend", body)
    assert reply.status == 200
    expected = bundle.recommend([history], 15, exclude_seen=exclude_seen)[0].items
    found = reply.json["items"]
    assert [item["id"] for item in found] == [item.key for item in expected]
    assert [item["title"] for item in found] == [item.title for item in expected]
    assert [item["interest"] for item in found] == [item.interest for item in expected]
    assert [item["score"] for item in found] == pytest.approx([i.score for i in expected], abs=2e-6)
    assert reply.json["bundle"] == {"name": bundle.name, "version": bundle.version}
    assert ("interests" in reply.json) is False
    if exclude_seen:
        assert not {item["id"] for item in found} & set(history)


def test_unknown_items_are_reported_and_left_out(server: RunningServer, mind: Bundle) -> None:
    known = [KEYS[7], KEYS[10]]
    reply = server.ask("/recommend", {"history": ["no such film", *known, "ü"], "k": 5})
    assert reply.json["unknown"] == ["no such film", "ü"]
    assert reply.json["popular"] is False
    expected = mind.recommend([known], 5)[0].items
    assert [item["id"] for item in reply.json["items"]] == [item.key for item in expected]


def test_an_unknown_user_gets_the_most_popular_items(server: RunningServer, mind: Bundle) -> None:
    for history in ([], ["no such film"]):
        reply = server.ask("/recommend", {"history": history, "k": 4, "explain": True})
        assert reply.json["popular"] is True
        counts = [item["count"] for item in reply.json["items"]]
        assert counts == sorted(mind.item_counts.tolist(), reverse=True)[:4]


def test_user_features_change_the_scores(server: RunningServer, mind: Bundle) -> None:
    features = {"age": 30, "country": "fr"}
    body = {"history": [KEYS[7]], "k": 10, "user_features": features}
    found = server.ask("/recommend", body).json["items"]
    expected = mind.recommend([[KEYS[7]]], 10, user_features=[features])[0].items
    assert [item["score"] for item in found] == pytest.approx([i.score for i in expected], abs=2e-6)
    plain = server.ask("/recommend", body | {"user_features": None}).json["items"]
    assert [item["score"] for item in plain] != [item["score"] for item in found]


def test_reasons_are_the_nearest_items_of_the_history(server: RunningServer, mind: Bundle) -> None:
    history = KEYS[20:26]
    reply = server.ask("/recommend", {"history": history, "k": 10, "explain": True})
    vectors = torch.nn.functional.normalize(mind.item_vectors.double(), dim=1)
    ids = mind.item_ids(history)
    for item in reply.json["items"]:
        cosines = vectors[ids] @ vectors[mind.item_ids([item["id"]])[0]]
        assert item["because"]["id"] == history[int(cosines.argmax())]
        assert item["because"]["similarity"] == pytest.approx(cosines.max().item(), abs=1e-4)


def test_each_interest_has_its_own_list(server: RunningServer, mind: Bundle) -> None:
    history = KEYS[20:26]
    reply = server.ask("/recommend", {"history": history, "k": 8, "explain": True})
    ids = mind.item_ids(history)
    interests = mind.users(torch.from_numpy(ids)[None])[0].double()  # [K, d]
    scores = interests @ mind.item_vectors.double().T  # [K, N + 1]
    scores[:, [0, *ids.tolist()]] = -torch.inf
    units = torch.nn.functional.normalize(mind.item_vectors.double(), dim=1)
    assert [entry["interest"] for entry in reply.json["interests"]] == [0, 1, 2]
    for number, entry in enumerate(reply.json["interests"]):
        best = scores[number].topk(8)
        assert [item["id"] for item in entry["items"]] == mind.item_keys(best.indices.tolist())
        found = [item["score"] for item in entry["items"]]
        assert found == pytest.approx(best.values.tolist(), abs=1e-5)
        near = (interests[number] @ units[ids].T).topk(3).indices.tolist()
        assert entry["near"] == [history[place] for place in near]


def test_similar(server: RunningServer, youtube: Bundle) -> None:
    reply = server.ask(f"/similar?id={quote(COMMA, safe='')}&k=7&bundle=compare")
    assert reply.json["item"]["id"] == COMMA
    assert reply.json["item"]["title"] == SPECIAL[COMMA]
    expected = youtube.similar(COMMA, 7)
    assert [item["id"] for item in reply.json["items"]] == [item.key for item in expected]


def test_more_than_the_catalogue_holds_is_all_of_it(server: RunningServer) -> None:
    reply = server.ask("/recommend", {"history": [KEYS[0]], "k": 1000})
    assert len(reply.json["items"]) == len(KEYS) - 1
    assert len(server.ask("/similar?id=m1&k=1000").json["items"]) == len(KEYS) - 1


@pytest.mark.parametrize(
    ("search", "first"),
    [
        ("amelie", "m1"), ("AMÉLIE poul", "m1"), ("poulain am", "m1"), ("schindlers", "m4"),
        ("schindler's list", "m4"), ("七人", "m3"), ("1954", "m3"), ("alert no", "m2"),
        (COMMA, COMMA), ("m3", "m3"), ("comma co", COMMA),
    ],
)  # fmt: skip
def test_items_are_found_by_title_or_id(server: RunningServer, search: str, first: str) -> None:
    reply = server.ask(f"/items?search={quote(search, safe='')}")
    assert reply.json["items"][0]["id"] == first
    assert reply.json["items"][0]["title"] == SPECIAL[first]


def test_pages_of_items_follow_each_other(server: RunningServer) -> None:
    for search in ("", "film"):
        whole = server.ask(f"/items?search={search}&limit=60").json["items"]
        pages: list[dict[str, object]] = []
        more = True
        while more:
            page = server.ask(f"/items?search={search}&limit=7&offset={len(pages)}").json
            pages += page["items"]
            more = page["more"]
        assert pages == whole
        assert len(whole) == (60 if not search else 55)


def test_items_by_id(server: RunningServer) -> None:
    ids = ["m3", "nothing", COMMA]
    query = "&".join(f"id={quote(key, safe='')}" for key in ids)
    reply = server.ask(f"/items?{query}").json
    assert [item["id"] for item in reply["items"]] == ["m3", COMMA]
    assert reply["unknown"] == ["nothing"]


def test_health_describes_the_bundles(server: RunningServer, mind: Bundle, youtube: Bundle) -> None:
    health = server.ask("/health").json
    assert health["status"] == "ok"
    for slot, bundle in (("main", mind), ("compare", youtube)):
        facts = health["bundles"][slot]
        assert (facts["name"], facts["version"]) == (bundle.name, bundle.version)
        assert (facts["items"], facts["interests"]) == (60, bundle.num_interests)
    assert health["bundles"]["main"]["user_features"]["country"]["values"] != []


def test_metrics_count_requests(server: RunningServer) -> None:
    def counted() -> float:
        text = server.ask("/metrics").body.decode()
        line = re.search(r'crossbatch_requests_total\{path="/health",status="200"\} (\S+)', text)
        return float(line[1]) if line else 0.0

    before = counted()
    server.ask("/health")
    assert counted() == before + 1
    server.ask("/no/such/path")
    text = server.ask("/metrics").body.decode()
    assert "such" not in text  # unknown paths must not fill the registry
    assert 'path="other",status="404"' in text


def test_every_request_is_one_line_of_json_without_the_history(server: RunningServer) -> None:
    reply = server.ask("/recommend", {"history": ["m3"]}, headers={"X-Request-ID": "abc-123"})
    assert reply.headers["x-request-id"] == "abc-123"
    (line,) = wait_until(lambda: [e for e in list(server.log) if e.get("id") == "abc-123"])
    assert line["event"] == "request"
    assert (line["method"], line["path"], line["status"]) == ("POST", "/recommend", 200)
    assert "m3" not in json.dumps(line)
    hostile = server.ask("/health", headers={"X-Request-ID": 'x" onload="'})
    assert '"' not in hostile.headers["x-request-id"]


def test_requests_at_the_same_time_are_answered_together(
    server: RunningServer, mind: Bundle
) -> None:
    """Sent on open connections at once: each gets its own list, in fewer searches than requests."""
    wait_until(lambda: _searches_for_many(server, mind) < 30)


def _searches_for_many(server: RunningServer, mind: Bundle) -> float:
    """Send 30 requests at once, check the answers, and return how many searches they took."""
    connections = []
    for key in KEYS[10:40]:
        connection = server.connect()
        body = json.dumps({"history": [key], "k": 3}).encode()
        head = (
            "POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        connections.append((key, connection, head.encode() + body))
    batches = _batches(server)
    for _, connection, request in connections:
        connection.sendall(request)
    for key, connection, _ in connections:
        with connection, connection.makefile("rb") as stream:
            answer = json.loads(stream.read().partition(b"\r\n\r\n")[2])
        expected = mind.recommend([[key]], 3)[0].items
        assert [item["id"] for item in answer["items"]] == [item.key for item in expected]
    return _batches(server) - batches


def _batches(server: RunningServer) -> float:
    text = server.ask("/metrics").body.decode()
    line = re.search(r"crossbatch_batch_size_count (\S+)", text)
    assert line is not None
    return float(line[1])
