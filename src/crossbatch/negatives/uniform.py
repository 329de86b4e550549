"""`UniformSampler`: items drawn from the whole catalogue, shared by the batch (Eq. 1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossbatch.kernels.distinct_ids import distinct_ids
from crossbatch.negatives.candidates import Candidates
from crossbatch.negatives.frequency import check_ids
from crossbatch.negatives.sampler import ItemEncoder, NegativeSampler, Users

if TYPE_CHECKING:
    from crossbatch.negatives.candidates import Corpus


class UniformSampler(NegativeSampler):
    """`num_negatives` distinct items, the same for every row of the batch.

    The proposal is constant, so its correction cancels and the softmax is Eq. 1 as printed. Every
    drawn item goes through the item tower, with gradient: this is the cost that in-batch and
    cross-batch sampling avoid.

    Args:
        corpus: Item counts (only their number matters here) and dimension.
        num_negatives: Columns per batch; at most the whole catalogue is drawn.
        law: `"uniform"`, or `"log_uniform"` as in ComiRec's code: Zipf over the id, which must then
            be the popularity rank; drawn with replacement and corrected by its own log q.
    """

    def __init__(self, corpus: Corpus, *, num_negatives: int = 1280, law: str = "uniform") -> None:
        super().__init__(corpus)
        if num_negatives < 1:
            raise ValueError(f"num_negatives must be at least 1, got {num_negatives}")
        if law not in ("uniform", "log_uniform"):
            raise ValueError(f"law must be 'uniform' or 'log_uniform', got {law!r}")
        self.num_negatives = num_negatives
        self.law = law

    def log_q(self, item_ids: Tensor) -> Tensor:
        """`[N]` constant −log(num_items), or the log of the Zipf distribution."""
        if not torch.compiler.is_compiling():  # value checks would break the graph
            check_ids("item_ids", item_ids, 1, self.num_items)
        return self._log_probability(item_ids)

    def _log_probability(self, item_ids: Tensor) -> Tensor:
        if self.law == "uniform":
            return torch.full(item_ids.shape, -math.log(self.num_items), device=item_ids.device)
        probability = torch.log1p(1.0 / item_ids.double()) / math.log(self.num_items + 1)
        return probability.log().float()

    def draw(self, users: Users, positives: Candidates, encode: ItemEncoder) -> Candidates:
        """Fresh items, encoded with gradient. The batch's own positives are not among them."""
        if self.law == "uniform":
            ids = draw_distinct(self.num_items, self.num_negatives, positives.item_ids.device)
        else:
            ids = self._draw_log_uniform(positives.item_ids.device)
        return Candidates(encode(ids), ids, self._log_probability(ids))

    def _draw_log_uniform(self, device: torch.device) -> Tensor:
        # Inverse of the cumulative probability log(1 + i) / log(1 + num_items) at i = 1..num_items.
        level = torch.rand(self.num_negatives, dtype=torch.float64)
        ids = torch.exp(level * math.log(self.num_items + 1)).long()
        return ids.clamp_(1, self.num_items).to(device)


def draw_distinct(num_items: int, count: int, device: torch.device) -> Tensor:
    """Draw `count` distinct ids uniformly from 1..num_items, without walking the catalogue.

    The distinct values of independent uniform draws are a uniform subset given their number, so
    missing ones are drawn again until there are enough.

    Returns:
        `[min(count, num_items)]` int64.
    """
    if 2 * count >= num_items:
        return (torch.randperm(num_items)[:count] + 1).to(device)
    ids = distinct_ids(torch.randint(1, num_items + 1, (count,)), num_items)
    while len(ids) < count:
        more = torch.randint(1, num_items + 1, (count - len(ids),))
        ids = distinct_ids(torch.cat([ids, more]), num_items)
    return ids.to(device)
