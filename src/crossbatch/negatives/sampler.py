"""`NegativeSampler`: the interface of all sampling strategies.

positives = Candidates(v, ids, sampler.log_q(ids))
negatives = sampler.draw(u, positives, encode)
loss = sampled_softmax_loss(u, positives, negatives)
...                                                  # backward, optimiser step
sampler.observe(positives)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from crossbatch.queries import Queries

if TYPE_CHECKING:
    from crossbatch.negatives.candidates import Candidates, Corpus

ItemEncoder = Callable[[Tensor], Tensor]  # ids [N] → g_v, [N, d]
Users = Tensor | Queries  # [B, d], or several weighted queries of each of B users


class NegativeSampler(nn.Module, ABC):
    """A proposal q over items and a way to draw columns from it.

    Samplers are modules, so that banks and counters follow `state_dict` and `.to(device)`.

    Args:
        corpus: Item counts and dimension.
    """

    def __init__(self, corpus: Corpus) -> None:
        super().__init__()
        self.num_items = corpus.num_items
        self.dim = corpus.dim

    @abstractmethod
    def log_q(self, item_ids: Tensor) -> Tensor:
        """`[N]` log-probability of `item_ids` `[N]` under this sampler's proposal."""

    @abstractmethod
    def draw(self, users: Users, positives: Candidates, encode: ItemEncoder) -> Candidates:
        """Columns for this batch.

        Args:
            users: Of the B rows, for strategies that look at them.
            positives: The batch's B positives.
            encode: Item tower, for strategies that fetch items from outside the batch.
        """

    def observe(self, positives: Candidates) -> None:
        """Take note of the batch, at the end of the iteration. Most strategies do nothing."""


def positive_counts(corpus: Corpus) -> Tensor:
    """`[num_items + 1]` counts with the padding row forced to 0."""
    counts = corpus.item_counts.clone()
    counts[0] = 0
    return counts
