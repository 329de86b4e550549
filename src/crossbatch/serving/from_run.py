"""A run folder that answers directly, without a bundle: for looking at what was just trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.data.features import read_encoders
from crossbatch.evaluation import encode_items
from crossbatch.retrieval import ExactIndex
from crossbatch.serving.recommender import Recommender

if TYPE_CHECKING:
    from crossbatch.models import ItemTower
    from crossbatch.training.saved import SavedRun


def run_recommender(saved: SavedRun) -> Recommender:
    """The run's best model over the dataset's items, searched exactly."""
    vectors = encode_items(saved.towers, saved.dataset.num_items)
    history_vectors = vectors
    if saved.towers.history == "id":
        item_tower: ItemTower = saved.towers.item_tower  # type: ignore[assignment]
        assert item_tower.table is not None
        history_vectors = item_tower.table.weight.detach()
    return Recommender(
        saved.dataset,
        saved.towers,
        item_vectors=vectors,
        history_vectors=history_vectors,
        index=ExactIndex(vectors),
        history_length=saved.recipe.train.history_length,
        user_encoders=read_encoders(saved.dataset.path / "features/users"),
    )
