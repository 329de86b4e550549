"""Recommendations directly from a run folder, without exporting a bundle first.

open_recommender(Path("runs/first")).recommend([["i17", "i4"]], k=20)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from crossbatch.data.dataset.features import read_encoders
from crossbatch.errors import ConfigError, DataError
from crossbatch.evaluation import encode_items
from crossbatch.models.own_towers import is_path
from crossbatch.queries import feature_rows
from crossbatch.remote import local_path
from crossbatch.retrieval import ExactIndex
from crossbatch.serving.bundle.graph import (
    MOST_IDS,
    OwnUsers,
    UserSide,
    ids_as_vectors,
    reads_vectors,
)
from crossbatch.serving.bundle.manifest import MANIFEST
from crossbatch.serving.bundle.model_files import HistoryEncoder, checked_schema
from crossbatch.serving.bundle.opening import open_bundle
from crossbatch.serving.recommender import Recommender
from crossbatch.serving.user_features import Profiles, feature_tables
from crossbatch.training.run_folder import SavedRun, open_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from torch import Tensor


RUN = "config.json"


def open_recommender(path: Path | str, *, data: Path | str | None = None) -> Recommender:
    """Open a bundle folder or a run folder; `data` is the run's dataset folder if it has moved."""
    path = local_path(path)
    if (path / MANIFEST).is_file():
        return open_bundle(path)
    if (path / RUN).is_file():
        return run_recommender(open_run(path, data=data))
    raise DataError(f"{path} is neither a bundle (no {MANIFEST}) nor a run folder (no {RUN})")


def run_recommender(saved: SavedRun) -> Recommender:
    """The run's best model over the dataset's items, searched exactly."""
    dataset, users = saved.dataset, user_side(saved)
    towers: Any = saved.towers
    length = saved.recipe.train.history_length
    vectors = history_vectors = encode_items(towers, dataset.num_items)
    if users is not None and users.by_ids:
        history_vectors = ids_as_vectors(dataset.num_items)
    elif saved.recipe.model.model or towers.history != "item_tower":
        history_vectors = encode_items(HistoryEncoder(towers), dataset.num_items)
    if users is not None:
        towers = OwnUsers(users, users.schema, length)
    encoders = read_encoders(dataset.path / "features/users")
    context_encoders = read_encoders(dataset.path / "features/context")
    of_users, of_requests = request_features(saved)
    return Recommender(
        dataset,
        towers,
        item_vectors=vectors,
        history_vectors=history_vectors,
        index=ExactIndex(vectors),
        history_length=length,
        user_encoders={name: encoders[name] for name in of_users},
        context_encoders={name: context_encoders[name] for name in of_requests},
    )


def user_side(saved: SavedRun) -> UserSide | None:
    """How the users of a run's model are asked; None for a recipe's own user towers."""
    config = saved.recipe.model
    if not is_path(config.name):
        return None
    folder = saved.dataset.path / "features"
    schema = checked_schema(folder / "users") | checked_schema(folder / "context")
    schema = {name: schema[name] for names in request_features(saved) for name in names}
    if not config.model:
        return UserSide(saved.towers, schema, by_ids=False)
    split = "test" if saved.dataset.num_eval_users("test") else "valid"
    length = saved.recipe.train.history_length
    batch = next(saved.dataset.eval_batches(split, batch_size=8, history_length=length))
    by_ids = not reads_vectors(saved.towers, batch.history, *feature_rows(saved.towers, batch))
    if by_ids and saved.dataset.num_items >= MOST_IDS:
        raise DataError(
            f"{config.model} reads ids, of which there may be {MOST_IDS:,}: give it the methods "
            "describe and interests of TwoTower"
        )
    return UserSide(saved.towers, schema, by_ids=by_ids)


def request_features(saved: SavedRun) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the user features and of the context features that a request may have.

    Of a whole model of foreign code those that its `profile` reads, if it has one as `TwoTower`.
    """
    config, dataset = saved.recipe.model, saved.dataset
    if config.model and getattr(saved.towers, "profile", None) is None:
        return (), ()
    users = feature_names(config.user_features, dataset.user_features)
    return users, feature_names(config.context, dataset.context_features)


def feature_names(chosen: Sequence[str], features: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the features that a recipe chooses; "*" stands for all of the dataset's."""
    return tuple(features) if tuple(chosen) == ("*",) else tuple(chosen)


def run_profiles(
    saved: SavedRun, user_ids: Tensor, event_ids: Tensor | None = None
) -> Profiles | None:
    """The stored features of users `[B]` and events `[B]` of the run's dataset, if it reads any."""
    features, context = saved.dataset.user_features, saved.dataset.context_features
    of_users, of_requests = request_features(saved)
    tables = feature_tables({name: features[name] for name in of_users})
    of_events = feature_tables({name: context[name] for name in of_requests})
    if not of_events:
        return Profiles(tables, user_ids) if tables else None
    assert event_ids is not None
    chosen = {name: table.selected(user_ids) for name, table in tables.items()}
    chosen |= {name: table.selected(event_ids) for name, table in of_events.items()}
    return Profiles(chosen, torch.arange(len(user_ids)))


def held_out_user(saved: SavedRun, number: int) -> tuple[np.ndarray, list[int], Profiles | None]:
    """History, later choices and features of the n-th test user of the run's dataset."""
    total = saved.dataset.num_eval_users("test")
    if not 0 <= number < total:
        raise ConfigError(f"--user must be 0 to {total - 1}, got {number}")
    train, dataset = saved.recipe.train, saved.dataset
    length, histories = train.history_length, train.histories
    for batch in dataset.eval_batches("test", history_length=length, histories=histories):
        if number < len(batch.user_ids):
            history = batch.history[number]
            own = slice(number, number + 1)
            events = None if batch.event_ids is None else batch.event_ids[own]
            profiles = run_profiles(saved, batch.user_ids[own], events)
            return history[history > 0].numpy(), batch.targets[number].tolist(), profiles
        number -= len(batch.user_ids)
    raise AssertionError("unreachable: the number was checked against the count")
