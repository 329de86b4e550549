"""Items as JSON: cache, popularity bands, search by key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from crossbatch.serving.server import items as module
from crossbatch.serving.server.items import ItemFacts

if TYPE_CHECKING:
    import pytest

    from crossbatch.serving import Bundle


def test_objects_are_json_and_correct_when_the_cache_is_small(
    youtube: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 7)
    facts = ItemFacts(youtube)
    for ids in ([1, 2, 3], [4, 5, 3], [6, 7, 8, 1], list(range(1, 61)), [60, 1]):
        members = [f'"score":{item}' for item in ids]
        found = [json.loads(text) for text in facts.objects(ids, members)]
        assert [entry["id"] for entry in found] == youtube.item_keys(ids)
        assert [entry["title"] for entry in found] == youtube.item_titles(ids)
        assert [entry["count"] for entry in found] == youtube.item_counts[ids].tolist()
        assert [entry["score"] for entry in found] == ids
        assert [json.loads(text) for text in facts.objects(ids)] == [
            {key: value for key, value in entry.items() if key != "score"} for entry in found
        ]


def test_bands_are_thirds_of_the_interactions(youtube: Bundle) -> None:
    facts = ItemFacts(youtube)
    found = [json.loads(text) for text in facts.objects(youtube.by_popularity.tolist())]
    counts = [entry["count"] for entry in found]
    assert counts == sorted(counts, reverse=True)
    total, before = sum(counts), 0
    for entry in found:
        band = "head" if 3 * before < total else "mid" if 3 * before < 2 * total else "tail"
        assert entry["popularity"] == ("cold" if entry["count"] == 0 else band)
        before += entry["count"]


def test_a_key_comes_before_titles_and_only_once(youtube: Bundle) -> None:
    facts = ItemFacts(youtube)
    whole, more = facts.page("m1", limit=10, offset=0)
    assert json.loads(whole[0])["id"] == "m1"
    assert len(whole) == len(set(whole))
    assert not more
    rest, _ = facts.page("m1", limit=10, offset=1)
    assert rest == whole[1:]
