"""Full-corpus evaluation by several ranks: each scores its own items, and lists are merged exactly.

Items, not users, are divided: a rank then encodes and holds N/R item vectors, so that a catalogue
can be larger than one machine could hold. Each rank sends k ids and scores per user, independent of
the catalogue's size. Every rank encodes every user: little beside scoring them, and the draws of
towers that are random at evaluation are those of one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from crossbatch.evaluation.recommenders import item_chunk
from crossbatch.retrieval import ExactIndex, TopK

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.evaluation.recommenders import ItemEncoder, OnItems
    from crossbatch.queries import Queries
    from crossbatch.training.distributed.ranks import Ranks


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
