"""The check at export: a bundle must answer as the model that it was made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from crossbatch.errors import DataError
from crossbatch.retrieval import ExactIndex
from crossbatch.retrieval.choice import LIST

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.serving.recommender import Recommender
    from crossbatch.serving.user_features import Profiles

USERS = 256
TOLERANCE = 1e-4  # of the largest number: far above float rounding, far below any real difference


@dataclass(frozen=True, slots=True)
class Probe:
    """Users with the interests that the original model gives them."""

    history: Tensor  # [U, L], item ids of the bundle that is checked
    profiles: Profiles | None  # their features, if the model reads any
    interests: Tensor  # [U, K, d]


def difference(what: str, found: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest number.

    Raises:
        DataError: If it exceeds `TOLERANCE`.
    """
    scale = max(float(expected.abs().max()), 1e-12)
    same_shape = found.shape == expected.shape
    worst = float((found - expected).abs().max()) / scale if same_shape else np.inf
    if not worst <= TOLERANCE:
        raise DataError(
            f"{what} differ from the trained model's by {worst:.2g} of their size, more than "
            f"{TOLERANCE:g}: nothing was exported"
        )
    return worst


def compare(recommender: Recommender, probe: Probe, vectors: Tensor) -> dict[str, float]:
    """Return the differences in user vectors and exact scores, by name.

    Args:
        recommender: The bundle that is checked.
        probe: Users and their expected interests.
        vectors: Expected item vectors `[N + 1, d]`.
    """
    interests = recommender.interests(probe.history, probe.profiles)
    k = min(LIST, recommender.num_items)
    expected = ExactIndex(vectors).search(probe.interests, k).scores
    found = ExactIndex(recommender.item_vectors).search(interests, k).scores
    return {
        "user vectors": difference("the bundle's user vectors", interests, probe.interests),
        "scores": difference("the bundle's scores", found, expected),
    }


def random_histories(recommender: Recommender, items: np.ndarray, *, seed: int = 0) -> Tensor:
    """Histories `[U, L]` drawn from `items` by popularity, where no real users are available."""
    weights = np.asarray(recommender.item_counts)[items] + 1.0
    shape = (USERS, recommender.history_length)
    drawn = np.random.default_rng(seed).choice(items, size=shape, p=weights / weights.sum())
    return torch.from_numpy(drawn)
