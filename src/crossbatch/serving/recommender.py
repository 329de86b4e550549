"""`Recommender`: ranked items for histories of item keys, for command line, files and server.

recommender.recommend([["i17", "i4"]], k=20)[0].items[0].title
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crossbatch.errors import ConfigError
from crossbatch.queries import Queries, weights_of
from crossbatch.retrieval import Allowed, Index, TopK
from crossbatch.serving.filters import FilterColumns, no_columns
from crossbatch.serving.user_features import NO_ENCODERS, Profiles, encode_profiles, with_profiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from crossbatch.data import Dataset
    from crossbatch.data.dataset.encoders import Encoder
    from crossbatch.models import TwoTower
    from crossbatch.serving.bundle.opening import StoredCatalogue


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """An item of a list.

    Attributes:
        interest: Number of the user vector that it matches best.
        because: Key of the item of the history that this vector stands for, in models whose
            queries are the items of the history.
    """

    id: int
    key: str
    title: str
    score: float
    interest: int
    because: str | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A user's list, best first."""

    items: list[ScoredItem]  # at most k; fewer only if no more items may be shown
    unknown: list[str]  # keys of the history that are no items of the catalogue
    popular: bool = False  # nothing was known of the user: these are the most popular items


@dataclass(frozen=True, slots=True)
class Ranking:
    """Lists of B users as arrays; empty slots have item id 0."""

    top: TopK  # scores and item ids [B, k]
    interest: Tensor  # number of the best matching interest [B, k]
    popular: Tensor  # [B], True where nothing was known of a user
    because: Tensor | None = None  # item of the history behind it [B, k], where there is one
    seconds: dict[str, float] = field(default_factory=dict)  # spent in "tower" and "search"


class Recommender:
    """Ranks a catalogue's items with trained towers, item vectors and an index.

    Args:
        catalogue: Keys, titles and counts of the items: a dataset's, or those stored in a bundle.
        towers: In evaluation mode.
        item_vectors: `[num_items + 1, d]`, what is scored.
        history_vectors: `[H + 1, w]`, input of the user tower for each item. Items beyond H have
            none: they can be recommended, but are skipped in histories.
        index: Over `item_vectors`.
        history_length: Most recent items that describe a user, L.
        user_encoders: Fitted encoders of the user features, by name.
        filters: Columns that a filter may name, if there are any.
        context_encoders: Those of the context of requests.
    """

    def __init__(
        self,
        catalogue: Dataset | StoredCatalogue,
        towers: TwoTower,
        *,
        item_vectors: Tensor,
        history_vectors: Tensor,
        index: Index,
        history_length: int,
        user_encoders: Mapping[str, Encoder],
        filters: FilterColumns | None = None,
        context_encoders: Mapping[str, Encoder] = NO_ENCODERS,
    ) -> None:
        self.catalogue, self.towers, self.index = catalogue, towers, index
        self.item_vectors, self.history_vectors = item_vectors, history_vectors
        self.history_length, self.user_encoders = history_length, user_encoders
        self.filters = filters
        self.context_encoders = context_encoders

    @property
    def num_items(self) -> int:
        """Items are 1 … this."""
        return len(self.item_vectors) - 1

    @property
    def dim(self) -> int:
        """Width d of all vectors."""
        return self.item_vectors.shape[1]

    @cached_property
    def num_interests(self) -> int:
        """Vectors K that describe a user, at most."""
        interests = self.users(torch.zeros(1, 1, dtype=torch.long))
        return self.history_length if isinstance(interests, Queries) else interests.shape[1]

    @property
    def item_counts(self) -> np.ndarray:
        """Training interactions of each item, int64 `[num_items + 1]`."""
        return self.catalogue.item_counts

    def item_ids(self, keys: Sequence[str]) -> np.ndarray:
        """Ids of items by their keys, 0 where unknown; int64."""
        return self.catalogue.item_ids(keys)

    def item_keys(self, ids: Iterable[int]) -> list[str]:
        """Keys of items."""
        return self.catalogue.item_keys(ids)

    def item_titles(self, ids: Iterable[int]) -> list[str]:
        """Titles of items, their keys where there is none."""
        return self.catalogue.item_titles(ids)

    def users(
        self,
        history: Tensor,
        user_features: Sequence[Mapping[str, Any] | None] | None = None,
        context: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> Tensor | Queries:
        """Interests `[B, K, d]`, or `Queries`, of histories `[B, L]` of item ids, padded with 0.

        Args:
            history: Oldest item first.
            user_features: Of each user, values by name; None where nothing is known.
            context: Likewise of each request.
        """
        return self.interests(history, self.profiles(user_features, len(history), context))

    @torch.no_grad()
    def interests(self, history: Tensor, profiles: Profiles | None = None) -> Tensor | Queries:
        """As `users`, with features that are encoded already."""
        vectors, mask = self.history_vectors[history], history != 0
        if profiles is None:
            return self.towers.interests(vectors, mask)
        towers = with_profiles(self.towers, profiles.tables)
        return towers.interests(vectors, mask, profiles.rows)

    def profiles(
        self,
        user_features: Sequence[Mapping[str, Any] | None] | None,
        users: int,
        context: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> Profiles | None:
        """Encode user features and context of requests, one entry for each of `users` users."""
        for name, given in (("user_features", user_features), ("context", context)):
            if given is not None and len(given) != users:
                raise ConfigError(
                    f"{name} must have one entry for each of {users} histories, got {len(given)}"
                )
        if user_features is None and context is None and not self.context_encoders:
            return None
        return encode_profiles(
            self.user_encoders, user_features or [None] * users, self.context_encoders, context
        )

    def recommend(
        self,
        histories: Sequence[Sequence[str]],
        k: int,
        *,
        exclude_seen: bool = True,
        user_features: Sequence[Mapping[str, Any] | None] | None = None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - named as in a request
        candidates: Sequence[str] | None = None,
        context: Sequence[Mapping[str, Any] | None] | None = None,
        exclude: Sequence[str] = (),
    ) -> list[Recommendation]:
        """The k best items for each history of item keys, oldest first.

        Args:
            histories: Unknown keys are left out and reported.
            k: Length of the lists, 1 … `num_items`.
            exclude_seen: Whether items of the history stay out of the list.
            user_features: Of each user, values by name; None where nothing is known.
            filter: Conditions on the filter columns; see `crossbatch.serving.filters`.
            candidates: Keys of the only items that a list may hold; unknown ones have no effect.
            context: Likewise of each request: what the model's context features were in training.
                The hour and the day of the week (UTC) are those of the clock unless given.
            exclude: Keys of items that no list may hold; unknown ones have no effect.

        Raises:
            ConfigError: If k, a user feature or the filter cannot be honoured.
        """
        known, unknown = self.known(histories)
        banned = self.item_ids(list(exclude))
        ranking = self.rank(
            known,
            k,
            exclude_seen=exclude_seen,
            profiles=self.profiles(user_features, len(histories), context),
            exclude=[banned[banned > 0]] * len(histories),
            allowed=self.allowed(filter, candidates),
        )
        return [
            Recommendation(self.named(ranking, row), keys, bool(ranking.popular[row]))
            for row, keys in enumerate(unknown)
        ]

    def known(self, histories: Sequence[Sequence[str]]) -> tuple[list[np.ndarray], list[list[str]]]:
        """Ids of the known items of each history, and its unknown keys."""
        found = self.item_ids([key for history in histories for key in history])
        ids, unknown, start = [], [], 0
        for history in histories:
            row, start = found[start : start + len(history)], start + len(history)
            ids.append(row[row > 0])
            unknown.append([key for key, item in zip(history, row, strict=True) if not item])
        return ids, unknown

    def allowed(
        self,
        filter: Mapping[str, Any] | None,  # noqa: A002
        candidates: Sequence[str] | None,
    ) -> Allowed | None:
        """The items that meet a filter and are among the candidates; None for all items."""
        found = None
        if filter:
            if self.filters is None:
                raise no_columns("this model")
            found = self.filters.allowed(filter)
        if candidates is None:
            return found
        mask = torch.zeros(self.num_items + 1, dtype=torch.bool)
        mask[torch.from_numpy(self.item_ids(list(candidates)))] = True
        mask[0] = False
        return Allowed(mask if found is None else mask & found.mask)

    @torch.no_grad()
    def rank(
        self,
        histories: Sequence[np.ndarray],
        k: int,
        *,
        exclude_seen: bool = True,
        profiles: Profiles | None = None,
        exclude: Sequence[np.ndarray] | None = None,
        allowed: Allowed | None = None,
    ) -> Ranking:
        """The k best items for each history of known item ids, as arrays.

        A user without a readable item and without features gets the most popular items.
        `exclude` has further item ids for each user that must not be in the list, `allowed` those
        that may be in any.
        """
        if not 1 <= k <= self.num_items:
            raise ConfigError(f"k must be 1 to {self.num_items} (all items), got {k}")
        readable = [row[row < len(self.history_vectors)] for row in histories]
        history = _padded([row[-self.history_length :] for row in readable])
        banned = [row if exclude_seen else row[:0] for row in histories]
        if exclude is not None:
            banned = [np.concatenate(pair) for pair in zip(banned, exclude, strict=True)]
        left_out = _padded(banned) if any(map(len, banned)) else None
        began = time.perf_counter()
        interests = self.interests(history, profiles)  # [B, K, d]
        if profiles is not None and not torch.isfinite(weights_of(interests)[0]).all():
            raise ConfigError("user features are too large: the model's answer is not finite")
        encoded = time.perf_counter()
        top = self.index.search(interests, k, exclude=left_out, allowed=allowed)
        seconds = {"tower": encoded - began, "search": time.perf_counter() - encoded}
        popular = torch.tensor([not len(row) for row in readable], dtype=torch.bool)
        if profiles is not None:
            popular &= ~profiles.is_told
        for row in popular.nonzero().flatten().tolist():
            top.item_ids[row], top.scores[row] = self._popular(k, banned[row], allowed)
        best = self._interest(interests, top.item_ids)
        because = None
        if isinstance(interests, Queries):
            because = history.gather(1, best.clamp(max=history.shape[1] - 1))
            because[popular] = 0
        return Ranking(top, best, popular, because, seconds)

    def similar(self, key: str, k: int) -> list[ScoredItem]:
        """The k items of largest cosine with an item, itself left out.

        Raises:
            ConfigError: If there is no such item, or k cannot be honoured.
        """
        item = int(self.item_ids([key])[0])
        if not item:
            raise ConfigError(f"{key!r} is no item of the catalogue")
        if not 1 <= k < self.num_items:
            raise ConfigError(f"k must be 1 to {self.num_items - 1} (all others), got {k}")
        query = self.item_vectors[item] / self._lengths[item]
        cosines = (self.item_vectors @ query) / self._lengths
        cosines[[0, item]] = -torch.inf
        best = cosines.topk(k)
        interest = torch.zeros(1, k, dtype=torch.long)
        top = TopK(best.values[None], best.indices[None])
        return self.named(Ranking(top, interest, torch.zeros(1, dtype=torch.bool)), 0)

    def _interest(self, interests: Tensor | Queries, item_ids: Tensor) -> Tensor:
        """Which of the interests `[B, K, d]` scores each of the items `[B, k]` highest."""
        vectors, log_weights = weights_of(interests)
        if vectors.shape[1] == 1:
            return torch.zeros_like(item_ids)
        scores = vectors @ self.item_vectors[item_ids].transpose(1, 2)  # [B, K, k]
        if log_weights is not None:
            scores += log_weights.unsqueeze(2)
        return scores.argmax(dim=1)

    def named(self, ranking: Ranking, row: int) -> list[ScoredItem]:
        """One user's list with keys and titles; empty places are left out."""
        ids = [item for item in ranking.top.item_ids[row].tolist() if item]
        columns = [ranking.top.scores[row].tolist(), ranking.interest[row].tolist()]
        if ranking.because is not None:
            behind = ranking.because[row].tolist()
            columns.append([key or None for key in self.item_keys(behind)])
        named = zip(ids, self.item_keys(ids), self.item_titles(ids), *columns, strict=False)
        return [ScoredItem(*entry) for entry in named]

    @cached_property
    def _lengths(self) -> Tensor:
        lengths: Tensor = self.item_vectors.norm(dim=1).clamp_min(1e-12)
        return lengths

    @cached_property
    def by_popularity(self) -> np.ndarray:
        """Item ids, the most popular first, `[num_items]`."""
        return np.argsort(-np.asarray(self.item_counts)[1:], kind="stable") + 1

    def _popular(self, k: int, seen: np.ndarray, allowed: Allowed | None) -> tuple[Tensor, Tensor]:
        """The most popular items, and their shares of all training interactions."""
        ids = self.by_popularity
        if allowed is not None:
            ids = ids[allowed.mask.numpy()[ids]]
        ids = ids[: k + len(seen)]
        ids = ids[~np.isin(ids, seen)][:k]
        counts = np.asarray(self.item_counts)
        shares = counts[ids] / max(1, int(counts.sum()))
        blank = k - len(ids)
        return (
            torch.from_numpy(np.pad(ids, (0, blank))),
            torch.from_numpy(
                np.pad(shares.astype(np.float32), (0, blank), constant_values=-np.inf)
            ),
        )


def _padded(rows: Sequence[np.ndarray]) -> Tensor:
    """Rows of ids as one tensor `[B, L]`, right-padded with 0; L is at least 1."""
    padded = np.zeros((len(rows), max((len(row) for row in rows), default=0) or 1), dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded)
