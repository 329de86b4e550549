"""Recommendations directly from a run folder, without exporting a bundle first.

open_recommender(Path("runs/first")).recommend([["i17", "i4"]], k=20)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crossbatch.data.dataset.features import read_encoders
from crossbatch.errors import ConfigError, DataError
from crossbatch.evaluation import encode_items
from crossbatch.retrieval import ExactIndex
from crossbatch.serving.bundle.manifest import MANIFEST
from crossbatch.serving.bundle.model_files import HistoryEncoder
from crossbatch.serving.bundle.opening import open_bundle
from crossbatch.serving.recommender import Recommender
from crossbatch.serving.user_features import Profiles, feature_tables
from crossbatch.training.run_folder import open_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from torch import Tensor

    from crossbatch.training.run_folder import SavedRun

RUN = "config.json"


def open_recommender(path: Path, *, data: Path | None = None) -> Recommender:
    """Open a bundle folder or a run folder; `data` is the run's dataset folder if it has moved."""
    if (path / MANIFEST).is_file():
        return open_bundle(path)
    if (path / RUN).is_file():
        return run_recommender(open_run(path, data=data))
    raise DataError(f"{path} is neither a bundle (no {MANIFEST}) nor a run folder (no {RUN})")


def run_recommender(saved: SavedRun) -> Recommender:
    """The run's best model over the dataset's items, searched exactly."""
    dataset, towers = saved.dataset, saved.towers
    vectors = history_vectors = encode_items(towers, dataset.num_items)
    if towers.history != "item_tower":
        history_vectors = encode_items(HistoryEncoder(towers), dataset.num_items)
    encoders = read_encoders(dataset.path / "features/users")
    names = feature_names(saved.recipe.model.user_features, dataset.user_features)
    return Recommender(
        dataset,
        towers,
        item_vectors=vectors,
        history_vectors=history_vectors,
        index=ExactIndex(vectors),
        history_length=saved.recipe.train.history_length,
        user_encoders={name: encoders[name] for name in names},
    )


def feature_names(chosen: Sequence[str], features: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the features that a recipe chooses; "*" stands for all of the dataset's."""
    return tuple(features) if tuple(chosen) == ("*",) else tuple(chosen)


def run_profiles(saved: SavedRun, user_ids: Tensor) -> Profiles | None:
    """The stored features of users `[B]` of the run's dataset, if its model reads any."""
    features = saved.dataset.user_features
    names = feature_names(saved.recipe.model.user_features, features)
    tables = feature_tables({name: features[name] for name in names})
    return Profiles(tables, user_ids) if tables else None


def held_out_user(saved: SavedRun, number: int) -> tuple[np.ndarray, list[int], Profiles | None]:
    """History, later choices and features of the n-th test user of the run's dataset."""
    total = saved.dataset.num_eval_users("test")
    if not 0 <= number < total:
        raise ConfigError(f"--user must be 0 to {total - 1}, got {number}")
    length = saved.recipe.train.history_length
    for batch in saved.dataset.eval_batches("test", history_length=length):
        if number < len(batch.user_ids):
            history = batch.history[number]
            profiles = run_profiles(saved, batch.user_ids[number : number + 1])
            return history[history > 0].numpy(), batch.targets[number].tolist(), profiles
        number -= len(batch.user_ids)
    raise AssertionError("unreachable: the number was checked against the count")
