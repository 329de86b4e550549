"""Baselines without training, evaluated by the same code as a model.

evaluate_baselines(ds, "test")["item_knn"].means()["recall@50"]
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossbatch.evaluation.evaluator import EvalBatch, evaluate_recommender
from crossbatch.evaluation.item_knn import nearest_items
from crossbatch.evaluation.popularity import Popularity
from crossbatch.evaluation.recommenders import Recommender, UserBatch
from crossbatch.evaluation.result import Evaluation


class TrainingData(Protocol):
    """What a baseline needs of a dataset; `crossbatch.data.Dataset` is one."""

    @property
    def num_items(self) -> int:
        """Ids run from 1 to this."""
        ...

    @property
    def item_counts(self) -> npt.NDArray[Any]:
        """`[num_items + 1]` training frequencies."""
        ...

    def train_sequences(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """(`[U + 1]` offsets, item ids) of the training sequences, oldest item first."""
        ...

    @property
    def eval_batches(self) -> Callable[..., Iterable[EvalBatch]]:
        """`eval_batches(split, **options)`: users of a split with their held-out items."""
        ...


def popularity(dataset: TrainingData) -> Recommender:
    """The items most frequent in training, the same for every user; ties by id."""
    ranking = _by_popularity(dataset.item_counts)

    def recommend(batch: UserBatch, k: int, exclude: Tensor | None) -> Tensor:
        spare = 0 if exclude is None else exclude.shape[1]
        candidates = ranking[: k + spare].expand(len(batch.history), -1)
        return first_distinct(candidates, k, exclude)

    return recommend


def item_knn(dataset: TrainingData, *, neighbours: int = 200) -> Recommender:
    """Items that users with the same history items also had; popular ones where these run out."""
    offsets, items = dataset.train_sequences()
    nearest = nearest_items(
        np.asarray(offsets, dtype=np.int64),
        items,
        num_items=dataset.num_items,
        neighbours=neighbours,
    )
    ranking = _by_popularity(dataset.item_counts)

    def recommend(batch: UserBatch, k: int, exclude: Tensor | None) -> Tensor:
        spare = 0 if exclude is None else exclude.shape[1]
        ranked = torch.from_numpy(nearest.rank(batch.history.cpu().numpy(), k + spare))
        popular = ranking[: 2 * (k + spare)].expand(len(ranked), -1)
        return first_distinct(torch.cat([ranked, popular], dim=1), k, exclude)

    return recommend


BASELINES: dict[str, Callable[[TrainingData], Recommender]] = {
    "popularity": popularity,
    "item_knn": item_knn,
}


def evaluate_baselines(
    dataset: TrainingData,
    split: str,
    *,
    names: Sequence[str] = tuple(BASELINES),
    ks: Sequence[int] = (20, 50),
    exclude_history: bool = False,
    on_batch: Callable[[int], None] | None = None,
    **batch_options: Any,
) -> dict[str, Evaluation]:
    """Evaluate the named baselines on one split, by the rules of `evaluate`."""
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise ValueError(f"names must be among {', '.join(BASELINES)}, got {unknown[0]!r}")
    bands = Popularity.from_counts(dataset.item_counts)
    return {
        name: evaluate_recommender(
            BASELINES[name](dataset),
            dataset.eval_batches(split, **batch_options),
            popularity=bands,
            ks=ks,
            exclude_history=exclude_history,
            on_batch=on_batch,
        )
        for name in names
    }


def first_distinct(candidates: Tensor, k: int, exclude: Tensor | None = None) -> Tensor:
    """Return the first k distinct, allowed ids of each row of `[B, C]`, 0 where there are fewer.

    Args:
        candidates: `[B, C]` item ids, best first; 0 is skipped.
        k: Length of the lists.
        exclude: `[B, X]` ids to skip; 0 means none.
    """
    values, order = candidates.sort(dim=1, stable=True)
    repeated = torch.zeros_like(values, dtype=torch.bool)
    repeated[:, 1:] = values[:, 1:] == values[:, :-1]
    skip = torch.zeros_like(repeated).scatter_(1, order, repeated) | (candidates == 0)
    if exclude is not None:
        for column in exclude.T:  # one id a row at a time: no [B, C, X] array
            skip |= candidates == column[:, None]
    kept = skip.byte().argsort(dim=1, stable=True)[:, :k]
    ids = candidates.masked_fill(skip, 0).gather(1, kept)
    return torch.nn.functional.pad(ids, (0, k - ids.shape[1]))


def _by_popularity(item_counts: npt.NDArray[Any]) -> Tensor:
    """Item ids by falling training count; items never seen in training come last."""
    return torch.from_numpy(np.argsort(-np.asarray(item_counts)[1:], kind="stable") + 1)
