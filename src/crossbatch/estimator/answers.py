"""Lists of a bundle for users of a dataset and for histories, as `Recommendations`.

Answers(bundle, dataset, facts).recommend(["u17", "u4"], 10)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from crossbatch.errors import ConfigError
from crossbatch.results import Recommendations
from crossbatch.serving.tables import CHUNK_USERS, named_lists
from crossbatch.serving.user_features import Profiles, feature_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from crossbatch.data import Dataset
    from crossbatch.estimator.frame_source import FrameFacts
    from crossbatch.models import FeatureTable
    from crossbatch.serving import Bundle

    Requests = Sequence[Mapping[str, Any] | None] | None  # values by name of each
    Queries = Iterator[tuple[list[Any], list[np.ndarray], Profiles | None]]


@dataclass(frozen=True, slots=True)
class Answers:
    """A bundle, the dataset whose users it may be asked for, and how ids looked in the frame."""

    bundle: Bundle
    dataset: Dataset
    facts: FrameFacts

    def recommend(
        self,
        asked: Any,
        k: int,
        *,
        user_features: Requests = None,
        context: Requests = None,
        exclude: Sequence[Any] = (),
        **options: Any,
    ) -> Recommendations:
        """The k best items for users or histories; `options` are those of `Bundle.rank`."""
        queries = self._queries(asked, user_features, context)
        banned = self.bundle.item_ids([str(key) for key in _listed(exclude)])
        tables, names, sizes, popular = [], [], [], []
        for part, histories, profiles in queries:
            out = [banned[banned > 0]] * len(part)
            ranking = self.bundle.rank(histories, k, profiles=profiles, exclude=out, **options)
            tables.append(named_lists(self.bundle, pl.Series("user", part), ranking))
            names += part
            sizes += (ranking.top.item_ids > 0).sum(dim=1).tolist()
            popular += ranking.popular.tolist()
        if not tables:
            raise ConfigError("users is empty: pass at least one user or history")
        return self._answer(pl.concat(tables), names, sizes, popular)

    def similar(self, items: Any, k: int) -> Recommendations:
        """The k items of largest cosine with each item."""
        asked = [items] if isinstance(items, str | int | np.integer) else _listed(items)
        found = [self.bundle.similar(str(key), k) for key in asked]
        rows = [
            (query, rank, item.key, item.title, item.score)
            for query, list_ in zip(asked, found, strict=True)
            for rank, item in enumerate(list_, 1)
        ]
        names = ("query", "rank", "item", "title", "score")
        columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
        table = pl.DataFrame(columns, schema_overrides={"rank": pl.Int32, "score": pl.Float32})
        return self._answer(table, asked, [len(each) for each in found], [False] * len(found))

    def _answer(
        self, table: pl.DataFrame, names: list[Any], sizes: list[int], popular: list[bool]
    ) -> Recommendations:
        if self.facts.number_items:
            table = table.with_columns(pl.col("item").cast(pl.Int64))
        return Recommendations(table, names, sizes, popular, self.facts.library)

    def _queries(self, asked: Any, user_features: Requests, context: Requests) -> Queries:
        """What is asked, in chunks: names, histories of item ids, and features."""
        if asked is not None:
            asked = _listed(asked)
            histories = sum(map(_is_history, asked))
            if histories and histories == len(asked):
                return self._of_histories(asked, user_features, context)
            if histories:
                raise ConfigError("pass either ids of users or histories of items, not both")
        if user_features is not None:
            raise ConfigError("user_features belong to histories: those of users are in the data")
        return self._of_users(asked, context)

    def _of_histories(
        self, asked: list[Any], user_features: Requests, context: Requests
    ) -> Queries:
        _check_sizes(len(asked), user_features=user_features, context=context)
        for part in _chunks(len(asked)):
            keys = [[str(key) for key in _listed(history)] for history in asked[part]]
            given, around = (each and each[part] for each in (user_features, context))
            profiles = self.bundle.profiles(given, len(keys), around)
            numbers = list(range(part.start, part.start + len(keys)))
            yield numbers, self.bundle.known(keys)[0], profiles

    def _of_users(self, asked: list[Any] | None, context: Requests) -> Queries:
        """Users by their ids, all if None, with all their interactions and stored features."""
        dataset = self.dataset
        rows = np.arange(dataset.num_users)
        if asked is not None:
            rows = dataset.user_ids([str(key) for key in asked])
        if asked and (rows < 0).all():
            raise ConfigError(
                f"none of the {len(rows)} users is in the data, such as {asked[0]!r}: for new "
                "users pass histories of items, as [['item', 'item'], …]"
            )
        _check_sizes(len(rows), context=context)
        names = list(self.bundle.user_encoders)
        tables = feature_tables({name: dataset.user_features[name] for name in names})
        for part in _chunks(len(rows)):
            chunk = rows[part]
            keys = self._user_keys(chunk) if asked is None else asked[part]
            profiles = self.bundle.profiles(None, len(chunk), context and context[part])
            if tables:
                profiles = _with_stored(profiles, tables, torch.from_numpy(chunk))
            yield keys, [self._history(row) for row in chunk], profiles

    def _user_keys(self, rows: np.ndarray) -> list[Any]:
        keys = self.dataset.user_keys(rows)
        return [int(key) for key in keys] if self.facts.number_users else keys

    def _history(self, row: int) -> np.ndarray:
        """All items of a user that the bundle knows, int64, oldest first."""
        start, end = (0, 0) if row < 0 else self.dataset.offsets[row : row + 2]
        items = self.dataset.items[start:end].astype(np.int64)
        return items[items <= self.bundle.num_items]  # others: after an interrupted `partial_fit`


def _with_stored(
    asked: Profiles | None, tables: Mapping[str, FeatureTable], users: Tensor
) -> Profiles:
    """Stored features of users `[B]` (−1: unknown), beside what was asked with (context)."""
    if asked is None:
        return Profiles(tables, users)
    stored = {name: table.selected(users.clamp_min(0)) for name, table in tables.items()}
    rows = torch.arange(len(users)).masked_fill(users < 0, -1)
    return Profiles({**asked.tables, **stored}, rows)


def _check_sizes(queries: int, **given: Requests) -> None:
    for name, each in given.items():
        if each is not None and len(each) != queries:
            raise ConfigError(
                f"{name} must have one entry for each of {queries} users or histories, got "
                f"{len(each)}"
            )


def _chunks(total: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK_USERS) for start in range(0, total, CHUNK_USERS))


def _listed(values: Any) -> list[Any]:
    """A sequence, an array or a column of a frame as a list."""
    if not _is_history(values):
        raise ConfigError(f"pass a list, got {values!r}: [{values!r}] for a single one")
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _is_history(value: Any) -> bool:
    return not isinstance(value, str) and hasattr(value, "__iter__")
