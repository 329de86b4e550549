"""From queries to response bodies: the part of a request that runs in the search thread.

Queries with the same bundle, k, `exclude_seen` and filter share one search. Bodies are put together
as text from the items' cached JSON, which makes up most of them.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import normalize

from crossbatch.queries import weights_of
from crossbatch.serving.server.messages import RecommendRequest, UnknownItem

if TYPE_CHECKING:
    import numpy as np

    from crossbatch.serving import Bundle
    from crossbatch.serving.server.live_bundle import LiveBundle, Served

NEAREST = 3  # items of the history that describe an interest


class Similar(NamedTuple):
    """A query for the `k` nearest items of an item."""

    bundle: str
    key: str
    k: int


class Answer(NamedTuple):
    """The body of a response, and what the server's records need of it.

    Attributes:
        body: JSON.
        num_unknown: How many items of the history were unknown.
        served: The bundle that answered, of a recommendation.
        item_ids: The items shown.
        scores: Theirs.
    """

    body: bytes
    num_unknown: int = 0
    served: Served | None = None
    item_ids: Sequence[int] = ()
    scores: Sequence[float] = ()


class Found(NamedTuple):
    """One user's list: known item ids of the history, and ids, scores and interests of the list."""

    history: np.ndarray
    unknown: list[str]
    item_ids: list[int]
    scores: list[float]
    interests: list[int]
    popular: bool
    because: list[int] | None  # items of the history behind those of the list, where known


Query = RecommendRequest | Similar
Observe = Callable[[str, float], object]


def answer_all(
    bundles: Mapping[str, LiveBundle],
    queries: Sequence[Query],
    observe: Observe = lambda *_: None,
) -> list[Answer | Exception]:
    """Answer queries; a query that cannot be answered gets its exception instead.

    Every query is answered by the bundle that serves when its batch begins. `observe` is called
    with "filter", "tower" or "search" and the seconds that a search of several queries spent there.
    """
    serving = {slot: live.serving for slot, live in bundles.items()}
    answers: dict[int, Answer | Exception] = {}
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, query in enumerate(queries):
        if isinstance(query, Similar):
            try:
                answers[place] = _similar(serving[query.bundle], query)
            except Exception as error:  # concerns this query alone
                answers[place] = error
        else:
            allowed = json.dumps([query.filter, query.candidates], sort_keys=True)
            shared = (query.bundle or "main", query.k, query.exclude_seen, allowed)
            groups[shared].append(place)
    for (slot, *_), places in groups.items():
        group = [query for place in places if isinstance(query := queries[place], RecommendRequest)]
        found = _recommend(serving[slot], group, observe)
        answers.update(zip(places, found, strict=True))
    return [answers[place] for place in range(len(queries))]


def _recommend(
    served: Served, queries: Sequence[RecommendRequest], observe: Observe
) -> list[Answer | Exception]:
    try:
        lists = _search(served, queries, observe)
        return [_body(served, *pair) for pair in zip(queries, lists, strict=True)]
    except Exception as error:
        if len(queries) == 1:
            return [error]
        # One of them is impossible: answer each alone, so that the others succeed.
        return [answer for query in queries for answer in _recommend(served, [query], observe)]


def _search(served: Served, queries: Sequence[RecommendRequest], observe: Observe) -> list[Found]:
    """Lists of queries that share `k`, `exclude_seen` and the items that are allowed."""
    bundle, k = served.bundle, queries[0].k
    known, unknown = bundle.known([query.history for query in queries])
    features = [query.user_features for query in queries]
    began = time.perf_counter()
    allowed = bundle.allowed(queries[0].filter, queries[0].candidates)
    if allowed is not None:
        observe("filter", time.perf_counter() - began)
    ranking = bundle.rank(
        known,
        min(k, bundle.num_items),
        exclude_seen=queries[0].exclude_seen,
        profiles=bundle.profiles(features, len(queries), [query.context for query in queries]),
        exclude=bundle.known([query.exclude for query in queries])[0],
        allowed=allowed,
    )
    for stage, seconds in ranking.seconds.items():
        observe(stage, seconds)
    columns = (ranking.top.item_ids, ranking.top.scores, ranking.interest, ranking.popular)
    behind = [None] * len(queries) if ranking.because is None else ranking.because.tolist()
    rows = zip(known, unknown, *(column.tolist() for column in columns), behind, strict=True)
    lists = [Found(*row) for row in rows]
    return [found._replace(item_ids=[i for i in found.item_ids if i]) for found in lists]


def _body(served: Served, query: RecommendRequest, found: Found) -> Answer:
    members = [
        f'"score":{score:.6f},"interest":{interest}'
        for _, score, interest in zip(found.item_ids, found.scores, found.interests, strict=False)
    ]
    interests = ""
    if query.explain and not found.popular:
        reasons = _nearest_in_history(served.bundle, found)
        members = [
            f'{member},"because":{json.dumps(reason)}'
            for member, reason in zip(members, reasons, strict=True)
        ]
        interests = f'"interests":[{",".join(_interest_lists(served, query, found))}],'
    items = ",".join(served.items.objects(found.item_ids, members))
    body = (
        f'{{"bundle":{served.name_and_version_json},"items":[{items}],{interests}'
        f'"popular":{"true" if found.popular else "false"},"unknown":{json.dumps(found.unknown)}}}'
    )
    scores = found.scores[: len(found.item_ids)]
    return Answer(body.encode(), len(found.unknown), served, found.item_ids, scores)


def _similar(served: Served, query: Similar) -> Answer:
    item, _ = served.items.by_keys([query.key])
    if not item:
        raise UnknownItem(f"the bundle holds no item {query.key!r}")
    near = served.bundle.similar(query.key, min(query.k, served.bundle.num_items - 1))
    items = served.items.objects(
        [neighbour.id for neighbour in near],
        [f'"score":{neighbour.score:.6f}' for neighbour in near],
    )
    body = (
        f'{{"bundle":{served.name_and_version_json},"item":{item[0]},"items":[{",".join(items)}]}}'
    )
    return Answer(body.encode())


def _nearest_in_history(bundle: Bundle, found: Found) -> list[dict[str, Any] | None]:
    """For each recommended item the item of the history that stands behind it.

    That is the one whose query scores it highest, or else the one with the largest cosine to it.
    """
    history = torch.from_numpy(found.history)
    if not len(history) or not found.item_ids:
        return [None] * len(found.item_ids)
    vectors = bundle.item_vectors
    wanted = normalize(vectors[torch.tensor(found.item_ids)], dim=1)
    if found.because is None:
        cosines, places = (wanted @ normalize(vectors[history], dim=1).T).max(dim=1)  # of [k, L]
        behind = history[places]
    else:
        behind = torch.tensor(found.because[: len(found.item_ids)])
        cosines = (wanted * normalize(vectors[behind], dim=1)).sum(dim=1)
    keys = bundle.item_keys(behind.tolist())
    return [
        {"id": key, "similarity": round(value, 4)}
        for key, value in zip(keys, cosines.tolist(), strict=True)
    ]


def _interest_lists(served: Served, query: RecommendRequest, found: Found) -> list[str]:
    """For each of K interests a JSON object: its own list, and its nearest items of the history."""
    bundle, history = served.bundle, torch.from_numpy(found.history)
    shown = history[history < len(bundle.history_vectors)][-bundle.history_length :]
    padded = shown if len(shown) else torch.zeros(1, dtype=torch.long)
    told = ([query.user_features], [query.context])
    queries, log_weights = weights_of(bundle.users(padded[None], *told))
    interests = queries[0]  # [K, d]
    banned = torch.from_numpy(bundle.known([query.exclude])[0][0])
    if query.exclude_seen:
        banned = torch.cat([history, banned])
    exclude = banned.expand(len(interests), -1) if len(banned) else None
    top = bundle.index.search(
        interests[:, None],
        min(query.k, bundle.num_items),
        exclude=exclude,
        allowed=bundle.allowed(query.filter, query.candidates),
    )
    closeness = interests @ normalize(bundle.item_vectors[shown], dim=1).T  # [K, L]
    order = closeness.argsort(dim=1, descending=True)
    lists = []
    for number, (row, scores) in enumerate(zip(top.item_ids, top.scores, strict=True)):
        ids = row[row > 0].tolist()
        members = [f'"score":{score:.6f}' for score in scores[: len(ids)].tolist()]
        near = order[number] if log_weights is None else slice(number, number + 1)
        distinct = list(dict.fromkeys(shown[near].tolist()))[:NEAREST]
        lists.append(
            f'{{"interest":{number},"near":{json.dumps(bundle.item_keys(distinct))},'
            f'"items":[{",".join(served.items.objects(ids, members))}]}}'
        )
    return lists
