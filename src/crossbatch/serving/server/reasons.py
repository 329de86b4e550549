"""Why an item is in a list: the nearest item of the history, and what each interest stands for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import normalize

if TYPE_CHECKING:
    from crossbatch.serving import Bundle
    from crossbatch.serving.server.answers import Found, Recommend
    from crossbatch.serving.server.live_bundle import Served

NEAREST = 3  # items of the history that name an interest


def nearest_in_history(bundle: Bundle, found: Found) -> list[dict[str, Any] | None]:
    """For each recommended item the item of the history with the largest cosine to it."""
    history = torch.from_numpy(found.history)
    if not len(history) or not found.item_ids:
        return [None] * len(found.item_ids)
    vectors = bundle.item_vectors
    wanted = normalize(vectors[torch.tensor(found.item_ids)], dim=1)
    best = (wanted @ normalize(vectors[history], dim=1).T).max(dim=1)  # of [k, L]
    keys = bundle.item_keys(history[best.indices].tolist())
    return [
        {"id": key, "similarity": round(value, 4)}
        for key, value in zip(keys, best.values.tolist(), strict=True)
    ]


def interest_lists(served: Served, query: Recommend, found: Found) -> list[str]:
    """The list of each interest by itself, and the items of the history that it is closest to.

    Returns:
        K JSON objects.
    """
    bundle, history = served.bundle, torch.from_numpy(found.history)
    shown = history[history < len(bundle.history_vectors)][-bundle.history_length :]
    padded = shown if len(shown) else torch.zeros(1, dtype=torch.long)
    features = [query.user_features] if query.user_features else None
    interests = bundle.users(padded[None], features)[0]  # [K, d]
    exclude = history.expand(len(interests), -1) if query.exclude_seen else None
    top = bundle.index.search(interests[:, None], min(query.k, bundle.num_items), exclude=exclude)
    closeness = interests @ normalize(bundle.item_vectors[shown], dim=1).T  # [K, L]
    order = closeness.argsort(dim=1, descending=True)
    lists = []
    for number, (row, scores) in enumerate(zip(top.item_ids, top.scores, strict=True)):
        ids = row[row > 0].tolist()
        members = [f'"score":{score:.6f}' for score in scores[: len(ids)].tolist()]
        distinct = list(dict.fromkeys(shown[order[number]].tolist()))[:NEAREST]
        lists.append(
            f'{{"interest":{number},"near":{json.dumps(bundle.item_keys(distinct))},'
            f'"items":[{",".join(served.facts.objects(ids, members))}]}}'
        )
    return lists
