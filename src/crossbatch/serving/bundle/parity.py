"""The proof that a bundle answers as the model it was made of, over real users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from crossbatch.errors import DataError
from crossbatch.retrieval import ExactIndex
from crossbatch.retrieval.choice import LIST
from crossbatch.serving.from_run import run_profiles

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.serving.recommender import Recommender
    from crossbatch.serving.user_features import Profiles
    from crossbatch.training.run_folder import SavedRun

USERS = 256
TOLERANCE = 1e-4  # of the largest number: far above float rounding, far below any real difference


@dataclass(frozen=True, slots=True)
class Probe:
    """Users whose interests are known from elsewhere.

    Attributes:
        history: `[U, L]`, ids of the bundle that is probed.
        profiles: Their features, if the model reads any.
        interests: `[U, K, d]`, the truth.
    """

    history: Tensor
    profiles: Profiles | None
    interests: Tensor


def difference(what: str, found: Tensor, truth: Tensor) -> float:
    """Return the largest difference relative to the largest number.

    Raises:
        DataError: If it is beyond `TOLERANCE`.
    """
    scale = max(float(truth.abs().max()), 1e-12)
    worst = float((found - truth).abs().max()) / scale if found.shape == truth.shape else np.inf
    if not worst <= TOLERANCE:
        raise DataError(
            f"{what} differ from the trained model's by {worst:.2g} of their size, more than "
            f"{TOLERANCE:g}: nothing was exported"
        )
    return worst


def compare(recommender: Recommender, probe: Probe, vectors: Tensor) -> dict[str, float]:
    """Compare a bundle's user vectors and exact scores with the truth.

    Args:
        recommender: What will answer.
        probe: Users and their true interests.
        vectors: True item vectors `[N + 1, d]`.

    Returns:
        Relative differences by name.
    """
    interests = recommender.interests(probe.history, probe.profiles)
    k = min(LIST, recommender.num_items)
    expected = ExactIndex(vectors).search(probe.interests, k).scores
    found = ExactIndex(recommender.item_vectors).search(interests, k).scores
    return {
        "user vectors": difference("the bundle's user vectors", interests, probe.interests),
        "scores": difference("the bundle's scores", found, expected),
    }


def real_users(saved: SavedRun) -> Probe:
    """Held-out users with the interests that the trained towers give them."""
    split = "test" if saved.dataset.num_eval_users("test") else "valid"
    length = saved.recipe.train.history_length
    batch = next(saved.dataset.eval_batches(split, batch_size=USERS, history_length=length))
    with torch.no_grad():
        interests = saved.towers.users(batch.history, batch.user_ids)
    return Probe(batch.history, run_profiles(saved, batch.user_ids), interests)


def drawn_users(recommender: Recommender, items: np.ndarray, *, seed: int = 0) -> Tensor:
    """Histories `[U, L]` of given items, by popularity: where no real users are at hand."""
    weights = np.asarray(recommender.item_counts)[items] + 1.0
    shape = (USERS, recommender.history_length)
    drawn = np.random.default_rng(seed).choice(items, size=shape, p=weights / weights.sum())
    return torch.from_numpy(drawn)
