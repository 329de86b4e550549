"""From queries to answers: the part of a request that runs in the search thread.

Queries that may share a search do: one bundle, one k, one rule for seen items. Bodies are put
together as text from the items' own JSON, which is most of what they hold and rarely new.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossbatch.serving.server.reasons import interest_lists, nearest_in_history

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from crossbatch.serving.server.live_bundle import LiveBundle, Served


@dataclass(frozen=True, slots=True)
class Recommend:
    """A history that wants `k` items."""

    slot: str
    history: tuple[str, ...]
    k: int
    exclude_seen: bool = True
    user_features: Mapping[str, Any] | None = None
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Similar:
    """An item that wants its `k` neighbours."""

    slot: str
    key: str
    k: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of a response, and what to count."""

    body: bytes
    num_unknown: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """One user's list: known item ids of the history, and ids, scores and interests of the list."""

    history: np.ndarray
    unknown: list[str]
    item_ids: list[int]
    scores: list[float]
    interests: list[int]
    popular: bool


Query = Recommend | Similar


class UnknownItem(Exception):  # noqa: N818 - what it is, not whose mistake
    """An item that the bundle does not hold, and without which there is no answer."""


def answer_all(
    bundles: Mapping[str, LiveBundle], queries: Sequence[Query]
) -> list[Answer | Exception]:
    """Answer queries; the place of one that cannot be answered holds the reason.

    Every query is answered by the bundle that serves when its batch begins.
    """
    serving = {slot: live.serving for slot, live in bundles.items()}
    answers: dict[int, Answer | Exception] = {}
    groups: dict[tuple[str, int, bool], list[int]] = defaultdict(list)
    for place, query in enumerate(queries):
        if isinstance(query, Similar):
            try:
                answers[place] = _similar(serving[query.slot], query)
            except Exception as error:  # its own asker's alone
                answers[place] = error
        else:
            groups[query.slot, query.k, query.exclude_seen].append(place)
    for (slot, _, _), places in groups.items():
        group = [query for place in places if isinstance(query := queries[place], Recommend)]
        answers.update(zip(places, _recommend(serving[slot], group), strict=True))
    return [answers[place] for place in range(len(queries))]


def _recommend(served: Served, queries: Sequence[Recommend]) -> list[Answer | Exception]:
    try:
        lists = _search(served, queries)
        return [_body(served, *pair) for pair in zip(queries, lists, strict=True)]
    except Exception as error:  # whatever it is, it is somebody's answer
        if len(queries) == 1:
            return [error]
        # One of them asks for the impossible; the others must not suffer for it.
        return [answer for query in queries for answer in _recommend(served, [query])]


def _search(served: Served, queries: Sequence[Recommend]) -> list[Found]:
    """Lists of queries that share k and the rule for seen items."""
    bundle, k = served.bundle, queries[0].k
    known, unknown = bundle.known([query.history for query in queries])
    features = [query.user_features for query in queries]
    ranking = bundle.rank(
        known,
        min(k, bundle.num_items),
        exclude_seen=queries[0].exclude_seen,
        profiles=bundle.profiles(features, len(queries)) if any(features) else None,
    )
    columns = (ranking.top.item_ids, ranking.top.scores, ranking.interest, ranking.popular)
    rows = zip(known, unknown, *(column.tolist() for column in columns), strict=True)
    found = []
    for history, keys, item_ids, scores, interests, popular in rows:
        item_ids = [item for item in item_ids if item]  # empty slots are at the end
        found.append(Found(history, keys, item_ids, scores, interests, popular))
    return found


def _body(served: Served, query: Recommend, found: Found) -> Answer:
    members = [
        f'"score":{score:.6f},"interest":{interest}'
        for _, score, interest in zip(found.item_ids, found.scores, found.interests, strict=False)
    ]
    interests = ""
    if query.explain and not found.popular:
        reasons = nearest_in_history(served.bundle, found)
        members = [
            f'{member},"because":{json.dumps(reason)}'
            for member, reason in zip(members, reasons, strict=True)
        ]
        interests = f'"interests":[{",".join(interest_lists(served, query, found))}],'
    items = ",".join(served.facts.objects(found.item_ids, members))
    body = (
        f'{{"bundle":{served.name_and_version_json},"items":[{items}],{interests}'
        f'"popular":{"true" if found.popular else "false"},"unknown":{json.dumps(found.unknown)}}}'
    )
    return Answer(body.encode(), len(found.unknown))


def _similar(served: Served, query: Similar) -> Answer:
    item, _ = served.facts.by_keys([query.key])
    if not item:
        raise UnknownItem(f"the bundle holds no item {query.key!r}")
    near = served.bundle.similar(query.key, min(query.k, served.bundle.num_items - 1))
    items = served.facts.objects(
        [neighbour.id for neighbour in near],
        [f'"score":{neighbour.score:.6f}' for neighbour in near],
    )
    body = (
        f'{{"bundle":{served.name_and_version_json},"item":{item[0]},"items":[{",".join(items)}]}}'
    )
    return Answer(body.encode())
