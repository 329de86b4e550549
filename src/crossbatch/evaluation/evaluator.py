"""Full-corpus evaluation: every user's list over every item, one pass, bounded memory.

    evaluation = evaluate(model, ds.eval_batches("test"), item_counts=ds.item_counts)
    evaluation.means()["recall@50"]

No candidate sampling and no in-batch metric: each target competes with the whole catalogue.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from crossbatch.evaluation.hits import Hits, find_hits
from crossbatch.evaluation.metrics import METRICS, recall_of
from crossbatch.evaluation.popularity import BANDS, Popularity
from crossbatch.evaluation.recommenders import (
    Recommender,
    Towers,
    UserBatch,
    evaluation_mode,
    model_recommender,
)
from crossbatch.evaluation.result import CorpusTally, Evaluation
from crossbatch.retrieval import ExactIndex, Index


class EvalBatch(UserBatch, Protocol):
    """Users with their held-out items; `crossbatch.data.EvalBatch` is one."""

    @property
    def target_ids(self) -> Tensor:
        """`[T]` held-out items of all users of the batch, one user after another."""
        ...

    @property
    def target_offsets(self) -> Tensor:
        """`[B + 1]` where each user's targets start and end."""
        ...


def evaluate(
    model: Towers,
    batches: Iterable[EvalBatch],
    *,
    item_counts: npt.ArrayLike | Tensor,
    ks: Sequence[int] = (20, 50),
    exclude_history: bool = False,
    index: Callable[[Tensor], Index] = ExactIndex,
    device: torch.device | str = "cpu",
    seed: int = 0,
    on_batch: Callable[[int], None] | None = None,
) -> Evaluation:
    """Rank the whole catalogue for every user and measure the lists.

    Args:
        model: `.users(history, user_ids) -> [B, K, d]` and `.items(ids) -> [N, d]`. Modules are in
            evaluation mode meanwhile; their modes and the random state are restored.
        batches: Users with histories and held-out items.
        item_counts: `[num_items + 1]` training frequencies: catalogue size, popularity, cold items.
        ks: List lengths; the largest is searched once.
        exclude_history: Leave out the items of the history shown to the model. A target that
            repeats one of them could never be found, so it is dropped from the targets too, and a
            user left without a target is not counted. Off by default: repeats count as any target.
        index: Builds the index from item vectors.
        device: The model's device.
        seed: Seed for models that draw random numbers at inference.
        on_batch: Called with the number of users of each batch done, for a progress bar.
    """
    popularity = Popularity.from_counts(item_counts)
    with evaluation_mode(model, seed=seed):
        recommend = model_recommender(model, popularity.num_items, index=index, device=device)
        return evaluate_recommender(
            recommend,
            batches,
            popularity=popularity,
            ks=ks,
            exclude_history=exclude_history,
            on_batch=on_batch,
        )


def evaluate_recommender(
    recommend: Recommender,
    batches: Iterable[EvalBatch],
    *,
    popularity: Popularity,
    ks: Sequence[int] = (20, 50),
    exclude_history: bool = False,
    on_batch: Callable[[int], None] | None = None,
) -> Evaluation:
    """Measure anything that lists items, by the same rules as `evaluate`."""
    ks = tuple(sorted(set(ks)))
    if not ks or ks[0] < 1:
        raise ValueError(f"ks must name list lengths of at least 1, got {list(ks)}")
    tallies = {k: CorpusTally(popularity) for k in ks}
    columns: dict[str, list[Tensor]] = {}
    num_dropped = 0
    for batch in batches:
        exclude = batch.history if exclude_history else None
        ranked = recommend(batch, ks[-1], exclude)  # [B, k]
        target_ids, target_offsets = batch.target_ids, batch.target_offsets
        if exclude is not None:
            target_ids, target_offsets = _drop_seen(target_ids, target_offsets, exclude)
            num_dropped += len(batch.target_ids) - len(target_ids)
        hits = find_hits(ranked, target_ids, target_offsets)
        for name, values in _measure(hits, _bands(popularity, target_ids), ks):
            columns.setdefault(name, []).append(values)
        for k, tally in tallies.items():
            tally.add(ranked[:, :k])
        if on_batch is not None:
            on_batch(len(ranked))
    per_user = {name: torch.cat(values).numpy() for name, values in columns.items()}
    corpus = {f"{name}@{k}": v for k, tally in tallies.items() for name, v in tally.read().items()}
    return Evaluation(per_user=per_user, corpus=corpus, num_targets_dropped=num_dropped)


def _bands(popularity: Popularity, target_ids: Tensor) -> Tensor:
    """Return the `[T]` popularity bands of targets."""
    if len(target_ids) and int(target_ids.max()) > popularity.num_items:
        raise ValueError(
            f"item_counts covers {popularity.num_items} items but a target has id "
            f"{int(target_ids.max())}; pass the counts of the dataset the batches come from"
        )
    return popularity.band[target_ids]


def _measure(hits: Hits, bands: Tensor, ks: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield each metric's name and `[B]` values; slices as `cold_recall@50` and so on."""
    for k in ks:
        for name, metric in METRICS.items():
            yield f"{name}@{k}", metric(hits, k)
        for position, band in enumerate(BANDS):
            yield f"{band}_recall@{k}", recall_of(hits.only(bands == position), k)


def _drop_seen(ids: Tensor, offsets: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
    """Drop the targets that stand in their user's own history; CSR in, CSR out."""
    users = torch.repeat_interleave(torch.arange(len(history)), offsets.diff())
    keep = (history[users] != ids[:, None]).all(dim=1)
    kept_before = torch.cat([keep.new_zeros(1, dtype=torch.long), keep.cumsum(dim=0)])
    return ids[keep], kept_before[offsets]
