"""What a run's best model is worth: metrics over the whole catalogue, intervals, a baseline."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from crossbatch.evaluation import Popularity, evaluate, evaluate_recommender
from crossbatch.evaluation.baselines import popularity
from crossbatch.training.assemble import pick_device
from crossbatch.training.distributed.ranking import evaluate_together

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset
    from crossbatch.evaluation import Evaluation
    from crossbatch.training.distributed.ranks import Ranks

PAPER_METRICS = ("recall", "hit_rate", "ndcg", "ndcg_comirec")


def evaluate_split(
    model: object,
    dataset: Dataset,
    recipe: Recipe,
    split: str,
    max_users: int | None = None,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Full-corpus evaluation of the towers as they are, on "valid" or "test"."""
    measure = evaluate if ranks is None else partial(evaluate_together, ranks)
    return measure(
        cast("Any", model),
        dataset.eval_batches(
            split, history_length=recipe.train.history_length, max_users=max_users
        ),
        item_counts=np.array(dataset.item_counts),
        device=pick_device(recipe.train.device),
    )


def measure_test(
    model: object,
    dataset: Dataset,
    recipe: Recipe,
    per_user: Path | None,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Measure the test users and keep each user's metrics.

    Args:
        model: The best towers.
        dataset: What they were trained on.
        recipe: How.
        per_user: Folder for one array a metric, for paired comparisons; None to keep none.
        ranks: The processes that share the work, if there are several.

    Returns:
        The part of `result.json` that speaks of the test users.
    """
    test = evaluate_split(model, dataset, recipe, "test", ranks=ranks)
    if per_user is not None:
        per_user.mkdir(exist_ok=True)
        for name, values in test.per_user.items():
            if in_paper(name):
                np.save(per_user / f"test_{name}.npy", values.astype(np.float32))
    intervals = test.intervals()
    return {
        "test": finite(test.means()),
        "test_ci": {name: [i.low, i.high] for name, i in intervals.items() if in_paper(name)},
        "num_users": test.num_users,
        "baselines": {"popularity": {"test": finite(_popularity(dataset).means())}},
    }


def in_paper(metric: str) -> bool:
    """Whether a metric such as `recall@50` is of a kind that papers report."""
    return metric.split("@")[0] in PAPER_METRICS


def finite(metrics: dict[str, float]) -> dict[str, float | None]:
    """Metrics as JSON knows them: undefined ones are null."""
    return {name: value if value == value else None for name, value in metrics.items()}


def _popularity(dataset: Dataset) -> Evaluation:
    """What recommending the most frequent items to everybody achieves."""
    return evaluate_recommender(
        popularity(dataset),
        dataset.eval_batches("test"),
        popularity=Popularity.from_counts(np.array(dataset.item_counts)),
    )
