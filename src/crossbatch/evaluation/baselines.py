"""Simple recommenders to beat, evaluated by the same code as a model.

    evaluate_baselines(ds, "test", names=["item_knn", "rp3beta"])["rp3beta"].means()["recall@50"]

A baseline is a function of a dataset and its settings that gives a `Recommender`; `BASELINES` has
them with the settings that `tune_baseline` tries.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossbatch.data import Dataset
from crossbatch.errors import ConfigError
from crossbatch.evaluation.evaluator import evaluate_recommender
from crossbatch.evaluation.linear_models import factorise, item_weights, rank_by_weights
from crossbatch.evaluation.list_measures import Popularity
from crossbatch.evaluation.neighbours import Ints, nearest_items
from crossbatch.evaluation.recommenders import Recommender, Seen, UserBatch, first_kept
from crossbatch.evaluation.result import Evaluation
from crossbatch.retrieval import ExactIndex

# EASE inverts a dense matrix: N² · 4 bytes, twice, are 1.8 GB and N³ steps a minute at this size.
EASE_MAX_ITEMS = 15_000

# (histories [B, L], length of the lists, ids to leave out [B, X] or None) → ids [B, n], 0 for none
Ranking = Callable[[Tensor, int, Tensor | None], Tensor]


def popularity(dataset: Dataset) -> Recommender:
    """The items most frequent in training, the same for every user; ties by id."""
    return _then_popular(dataset, lambda histories, *_: histories[:, :0])


def item_knn(dataset: Dataset, *, neighbours: int = 200) -> Recommender:
    """Items that users with the same history items also had; popular ones where these run out."""
    nearest = nearest_items(
        *_sequences(dataset), num_items=dataset.num_items, neighbours=neighbours
    )
    return _then_popular(
        dataset, lambda histories, k, *_: torch.from_numpy(nearest.rank(histories.numpy(), k))
    )


def rp3beta(
    dataset: Dataset,
    *,
    alpha: float = 0.4,
    beta: float = 0.1,
    decay: float = 0.9,
    neighbours: int = 200,
) -> Recommender:
    """Items that a random walk of three steps reaches from the history's items, newest first.

    Args:
        dataset: What to learn from.
        alpha: Power of the transition probabilities.
        beta: Power of the popularity that a reached item is divided by.
        decay: An item of the history that was followed by n others counts decay^n.
        neighbours: Kept per item.
    """
    nearest = nearest_items(
        *_sequences(dataset),
        num_items=dataset.num_items,
        item_power=alpha,
        user_power=alpha,
        neighbour_power=beta,
        neighbours=neighbours,
        max_sequence=1_000,
    )

    def rank(histories: Tensor, k: int, exclude: Tensor | None) -> Tensor:
        return torch.from_numpy(nearest.rank(histories.numpy(), k, decay=decay))

    return _then_popular(dataset, rank)


def ease(dataset: Dataset, *, l2: float = 500.0) -> Recommender:
    """A linear model from items to items in closed form, for at most `EASE_MAX_ITEMS` items."""
    weights = item_weights(*_sequences(dataset), num_items=dataset.num_items, l2=l2)
    return _then_popular(dataset, partial(rank_by_weights, weights))


def als(
    dataset: Dataset, *, factors: int = 256, alpha: float = 40.0, l2: float = 50.0
) -> Recommender:
    """Matrix factorisation by alternating least squares; users are encoded from their history."""
    model = factorise(
        *_sequences(dataset), num_items=dataset.num_items, factors=factors, alpha=alpha, l2=l2
    )
    index = ExactIndex(model.items)

    def rank(histories: Tensor, k: int, exclude: Tensor | None) -> Tensor:
        return index.search(model.encode(histories)[:, None], k, exclude=exclude).item_ids

    return _then_popular(dataset, rank)


def _ease_fits(dataset: Dataset) -> str | None:
    if dataset.num_items <= EASE_MAX_ITEMS:
        return None
    return (
        f"ease is left out: it inverts a matrix of all items by all items, which is done for at "
        f"most {EASE_MAX_ITEMS:,} of them, and there are {dataset.num_items:,}"
    )


def _has_implicit(dataset: Dataset) -> str | None:
    if find_spec("implicit"):
        return None
    return "als is left out: it needs implicit, pip install 'crossbatch[baselines]'"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline and what there is to choose about it.

    Attributes:
        make: `make(dataset, **settings)` gives its recommender.
        grid: Values to try of each setting, the first one first.
        unavailable: Why a dataset or this machine cannot have it, in one sentence, or None.
        open_ended: Settings whose values are doubled or halved further while the best is at an end.
    """

    make: Callable[..., Recommender]
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    unavailable: Callable[[Dataset], str | None] = lambda _: None
    open_ended: tuple[str, ...] = ()


BASELINES = {
    "popularity": Baseline(popularity),
    "item_knn": Baseline(item_knn),
    "rp3beta": Baseline(
        rp3beta,
        {
            "alpha": (0.4, 0.3, 0.6, 0.8),
            "beta": (0.1, 0.0, 0.4, 0.7),
            "decay": (0.9, 0.8, 0.7, 1.0),
        },
    ),
    "ease": Baseline(ease, {"l2": (500.0, 200.0, 1000.0, 2000.0)}, _ease_fits, ("l2",)),
    "als": Baseline(
        als,
        {"factors": (256, 128), "alpha": (40.0, 10.0, 3.0, 100.0), "l2": (50.0, 10.0)},
        _has_implicit,
        ("alpha", "l2"),
    ),
}
UNTUNED = tuple(name for name, baseline in BASELINES.items() if not baseline.grid)


def evaluate_baselines(
    dataset: Dataset,
    split: str,
    *,
    names: Sequence[str] = UNTUNED,
    settings: Mapping[str, Mapping[str, float]] | None = None,
    ks: Sequence[int] = (20, 50),
    exclude_history: bool = False,
    on_batch: Callable[[int], None] | None = None,
    **batch_options: Any,
) -> dict[str, Evaluation]:
    """Evaluate the named baselines on one split, by the rules of `evaluate`.

    Args:
        dataset: What they learn from and are evaluated on.
        split: "valid" or "test".
        names: Which ones; by default those that have nothing to tune.
        settings: Settings by name, as `tune_baseline` finds them; the defaults otherwise.
        ks: List lengths.
        exclude_history: As in `evaluate`.
        on_batch: As in `evaluate`.
        batch_options: For `dataset.eval_batches`.

    Raises:
        ConfigError: If one of them cannot be had for this dataset or on this machine.
    """
    bands = Popularity.from_counts(dataset.item_counts)
    return {
        name: evaluate_recommender(
            find_baseline(name, dataset).make(dataset, **(settings or {}).get(name, {})),
            dataset.eval_batches(split, **batch_options),
            popularity=bands,
            ks=ks,
            exclude_history=exclude_history,
            on_batch=on_batch,
        )
        for name in names
    }


def find_baseline(name: str, dataset: Dataset) -> Baseline:
    """Return a baseline by its name, unless the dataset or this machine cannot have it."""
    check_names([name])
    unavailable = BASELINES[name].unavailable(dataset)
    if unavailable:
        raise ConfigError(unavailable)
    return BASELINES[name]


def check_names(names: Iterable[str]) -> None:
    """Raise `ConfigError` for a name that is none of a baseline."""
    for name in names:
        if name not in BASELINES:
            raise ConfigError(f"baselines must be among {', '.join(BASELINES)}, got {name!r}")


def first_distinct(candidates: Tensor, k: int, exclude: Tensor | None = None) -> Tensor:
    """Return the first k distinct, allowed ids of each row of `[B, C]`, 0 where there are fewer.

    Candidates are best first. They and `exclude` `[B, X]` have 0 for none.
    """
    values, order = candidates.sort(dim=1, stable=True)
    repeated = torch.zeros_like(values, dtype=torch.bool)
    repeated[:, 1:] = values[:, 1:] == values[:, :-1]
    skip = torch.zeros_like(repeated).scatter_(1, order, repeated) | (candidates == 0)
    if exclude is not None:
        rows = torch.arange(len(candidates)).repeat_interleave(candidates.shape[1])
        banned = Seen.from_padded(exclude).contains(rows, candidates.reshape(-1))
        skip |= banned.view_as(skip)
    return first_kept(candidates, skip, k)


def _then_popular(dataset: Dataset, rank: Ranking) -> Recommender:
    """Recommend by a ranking; popular items where it runs out, and for an empty history."""
    by_count = np.argsort(-np.asarray(dataset.item_counts)[1:], kind="stable")
    popular = torch.from_numpy(by_count + 1)

    def recommend(batch: UserBatch, k: int, exclude: Tensor | None) -> Tensor:
        histories = batch.history.cpu()
        spare = 0 if exclude is None else exclude.shape[1]
        ranked = rank(histories, k + spare, exclude)
        ranked = ranked * (histories > 0).any(dim=1, keepdim=True)
        rest = popular[: k + spare].expand(len(histories), -1)
        return first_distinct(torch.cat([ranked, rest], dim=1), k, exclude)

    return recommend


def _sequences(dataset: Dataset) -> tuple[Ints, npt.NDArray[Any]]:
    offsets, items = dataset.train_sequences()
    return np.asarray(offsets, dtype=np.int64), items
