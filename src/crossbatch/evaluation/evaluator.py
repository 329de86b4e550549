"""Full-corpus evaluation: every user's list over every item, one pass, bounded memory.

    evaluation = evaluate(model, ds.eval_batches("test"), item_counts=ds.item_counts)
    evaluation.means()["recall@50"]

No candidate sampling and no in-batch metric: each target competes with the whole catalogue.

Several ranks each score their own items, and lists are merged exactly. Items, not users, are
divided: a rank then encodes and holds N/R item vectors, so that a catalogue can be larger than one
machine could hold. Each rank sends k ids and scores per user, independent of the catalogue's size.
Every rank encodes every user: little beside scoring them, and the draws of towers that are random
at evaluation are those of one process.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossbatch.evaluation.list_measures import (
    BANDS,
    CorpusTally,
    ListMeasure,
    Novelty,
    Popularity,
    VectorDiversity,
)
from crossbatch.evaluation.metrics import METRICS, Hits, find_hits, recall_of
from crossbatch.evaluation.recommenders import (
    EvalBatch,
    ItemEncoder,
    OnItems,
    Recommender,
    Seen,
    Towers,
    drop_seen,
    encode_items,
    evaluation_mode,
    item_chunk,
    model_recommender,
    unseen_lists,
)
from crossbatch.evaluation.result import Evaluation
from crossbatch.retrieval import ExactIndex, TopK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from crossbatch.queries import Queries
    from crossbatch.training.distributed.ranks import Ranks


def evaluate(
    model: Towers,
    batches: Iterable[EvalBatch],
    *,
    item_counts: npt.ArrayLike | Tensor,
    ks: Sequence[int] = (20, 50),
    exclude_history: bool = False,
    device: torch.device | str = "cpu",
    seed: int = 0,
    on_batch: Callable[[int], None] | None = None,
    on_items: OnItems | None = None,
    measures: Mapping[str, ListMeasure] | None = None,
    by_vectors: bool = False,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Rank the whole catalogue for every user and measure the lists.

    Args:
        model: `.users(history, user_ids) -> [B, K, d]` and `.items(ids) -> [N, d]`. Modules are in
            evaluation mode meanwhile; their modes and the random state are restored.
        batches: Users with histories and held-out items.
        item_counts: `[num_items + 1]` training frequencies: catalogue size, popularity, cold items.
        ks: List lengths; the largest is searched once.
        exclude_history: Leave out everything that the user has had before the targets: a batch's
            `seen`, or its `history` if it has none. A target that repeats one of these items could
            never be found, so it is dropped from the targets too, and a user left without a target
            is not counted. Off by default: repeats count as any target.
        device: The model's device.
        seed: Seed for models that draw random numbers at inference.
        on_batch: Called with the number of users of each batch done, for a progress bar.
        on_items: Called with the number of items encoded so far, and with that of all.
        measures: Further measures of lists by name, such as `ContentDiversity`.
        by_vectors: Whether to measure the diversity of lists by the model's item vectors too;
            several ranks do not, because none holds all vectors.
        ranks: The processes that share the ranking; each has the whole result.

    Returns:
        The metrics; without `exclude_history` its `unseen` has those with the history left out.
    """
    popularity, lists = Popularity.from_counts(item_counts), dict(measures or {})
    catalogue = (model, popularity.num_items)
    with evaluation_mode(model, seed=seed):
        if ranks is None:
            vectors = encode_items(*catalogue, device=device, on_items=on_items)
            if by_vectors:
                lists["vector_diversity"] = VectorDiversity(vectors.cpu())
            index: ExactIndex | ItemShards = ExactIndex(vectors)
        else:
            index = shared_index(ranks, *catalogue, device=device, on_items=on_items)
        return evaluate_recommender(
            model_recommender(model, index, device=device),
            batches,
            popularity=popularity,
            ks=ks,
            exclude_history=exclude_history,
            on_batch=on_batch,
            measures=lists,
        )


def evaluate_recommender(
    recommend: Recommender,
    batches: Iterable[EvalBatch],
    *,
    popularity: Popularity,
    ks: Sequence[int] = (20, 50),
    exclude_history: bool = False,
    on_batch: Callable[[int], None] | None = None,
    measures: Mapping[str, ListMeasure] | None = None,
) -> Evaluation:
    """Measure anything that lists items, by the same rules as `evaluate`."""
    ks = tuple(sorted(set(ks)))
    if not ks or ks[0] < 1:
        raise ValueError(f"ks must name list lengths of at least 1, got {list(ks)}")
    k = ks[-1]
    lists: dict[str, ListMeasure] = {"novelty": Novelty(popularity.counts), **(measures or {})}
    all_items, unseen_items = (_Measured(popularity, ks, lists) for _ in range(2))
    user_ids = []
    for batch in batches:
        user_ids.append(batch.user_ids)
        seen = Seen.of(batch)
        # Half a list to spare is enough for most users; the others are searched for again.
        listed = recommend(batch, k + min(seen.longest, k // 2), None)
        unseen = unseen_lists(recommend, batch, k, listed, seen)
        all_items.add(listed[:, :k], batch.target_ids, batch.target_offsets)
        unseen_items.add(unseen, *drop_seen(batch.target_ids, batch.target_offsets, seen))
        if on_batch is not None:
            on_batch(len(listed))
    users = torch.cat(user_ids).numpy() if user_ids else None
    unseen_found = unseen_items.result(users, all_items.num_targets)
    return unseen_found if exclude_history else all_items.result(users, unseen=unseen_found)


class _Measured:
    """Metrics of one protocol, collected batch by batch."""

    def __init__(
        self, popularity: Popularity, ks: Sequence[int], lists: Mapping[str, ListMeasure]
    ) -> None:
        self.popularity, self.ks, self.lists = popularity, ks, lists
        self.tallies = {k: CorpusTally(popularity) for k in ks}
        self.columns: dict[str, list[Tensor]] = {}
        self.num_targets = 0

    def add(self, ranked: Tensor, target_ids: Tensor, target_offsets: Tensor) -> None:
        """Measure lists `[B, k]` by their users' targets."""
        hits = find_hits(ranked, target_ids, target_offsets)
        for name, values in _measure(hits, _bands(self.popularity, target_ids), self.ks):
            self.columns.setdefault(name, []).append(values)
        counted = target_offsets.diff() > 0  # users without a target are left out everywhere
        for k, (name, measure) in product(self.ks, self.lists.items()):
            values = measure(ranked[:, :k]).where(counted, torch.nan)
            self.columns.setdefault(f"{name}@{k}", []).append(values)
        for k, tally in self.tallies.items():
            tally.add(ranked[:, :k])
        self.num_targets += len(target_ids)

    def result(
        self,
        users: npt.NDArray[np.int64] | None,
        num_targets: int | None = None,
        unseen: Evaluation | None = None,
    ) -> Evaluation:
        """What was measured; `num_targets` is their number before any was dropped."""
        tallies = self.tallies.items()
        return Evaluation(
            per_user={name: torch.cat(values).numpy() for name, values in self.columns.items()},
            corpus={f"{name}@{k}": v for k, tally in tallies for name, v in tally.read().items()},
            num_targets_dropped=0 if num_targets is None else num_targets - self.num_targets,
            unseen=unseen,
            user_ids=users,
        )


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


class ItemShards:
    """Exact search over item vectors that are spread over ranks; all ranks ask the same.

    Args:
        ranks: This process among the others.
        vectors: `[n + 1, d]` vectors of this rank's items, row 0 unused; n may be 0.
        first_id: Id of the first of them.
    """

    def __init__(self, ranks: Ranks, vectors: Tensor, first_id: int) -> None:
        self.ranks, self.vectors, self.first_id = ranks, vectors, first_id

    def search(self, interests: Tensor | Queries, k: int, *, exclude: Tensor | None = None) -> TopK:
        """As `ExactIndex.search` over the items of all ranks."""
        own = self._search_own(interests, k, exclude)
        scores = torch.cat(self.ranks.collect(own.scores), dim=1)  # [B, R·k]
        item_ids = torch.cat(self.ranks.collect(own.item_ids), dim=1)
        # Ranks hold ascending ids, so a stable order keeps the smaller of equally good ones first.
        best, order = scores.sort(dim=1, descending=True, stable=True)
        return TopK(best[:, :k], item_ids.gather(1, order[:, :k]))

    def _search_own(self, interests: Tensor | Queries, k: int, exclude: Tensor | None) -> TopK:
        shift, num_own = self.first_id - 1, len(self.vectors) - 1
        if num_own == 0:
            nothing = self.vectors.new_full((len(interests), k), -torch.inf)
            return TopK(nothing, torch.zeros_like(nothing, dtype=torch.int64))
        if exclude is not None:
            exclude = exclude.to(self.vectors.device) - shift
            exclude = exclude.where((exclude > 0) & (exclude <= num_own), 0)
        found = ExactIndex(self.vectors).search(interests, k, exclude=exclude)
        return TopK(found.scores, torch.where(found.item_ids > 0, found.item_ids + shift, 0))


@torch.no_grad()
def shared_index(
    ranks: Ranks,
    model: ItemEncoder,
    num_items: int,
    *,
    device: torch.device | str = "cpu",
    on_items: OnItems | None = None,
) -> ItemShards:
    """The index of a catalogue of which every rank encodes and keeps a share."""
    own = ranks.share(num_items)
    each = -(-num_items // ranks.size)
    places = torch.arange(ranks.rank * each, (ranks.rank + 1) * each, device=device)
    # Equally many calls on every rank, which tables that are spread over ranks need.
    vectors: list[Tensor] = []
    for chunk in places.clamp_max(num_items - 1).split(item_chunk(model)):
        vectors.append(model.items(chunk + 1).float())
        if on_items is not None:
            on_items(min(each, sum(map(len, vectors))), each)
    found = torch.cat(vectors)[: own.stop - own.start]
    rows = torch.cat([found.new_zeros(1, found.shape[1]), found])
    return ItemShards(ranks, rows, own.start + 1)


def encode_together(
    ranks: Ranks, model: ItemEncoder, num_items: int, *, on_items: OnItems | None = None
) -> Tensor:
    """All item vectors `[num_items + 1, d]`, of which every rank has encoded a share."""
    vectors = shared_index(ranks, model, num_items, on_items=on_items).vectors
    gathered = ranks.gather(vectors[1:], num_items)
    return torch.cat([gathered.new_zeros(1, gathered.shape[1]), gathered])
