"""`InBatchSampler`: the other positives of the batch, corrected for popularity (Eqs. 3-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.negatives.frequency import LogFrequency
from crossbatch.negatives.sampler import ItemEncoder, NegativeSampler, Users, positive_counts
from crossbatch.negatives.streaming import StreamingFrequency

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.negatives.candidates import Candidates, Corpus

BUCKETS_PER_ITEM = 4  # of a streaming q: with two tables, one item in about 20 is overestimated


class InBatchSampler(NegativeSampler):
    """Negatives are the rest of the batch: no item is encoded for the sake of being a negative.

    An item is in the batch as often as it is a positive, so q is the unigram
    distribution of `corpus` and every logit, the positive's too, is `u·v − log q`.

    Args:
        corpus: Item counts and dimension.
        streaming_q: Whether to estimate q from the batches as they come instead, for
            popularity that drifts away from the counts.
    """

    frequency: LogFrequency | StreamingFrequency

    def __init__(self, corpus: Corpus, *, streaming_q: bool = False) -> None:
        super().__init__(corpus)
        self.frequency = (
            StreamingFrequency(BUCKETS_PER_ITEM * corpus.num_items)
            if streaming_q
            else LogFrequency(positive_counts(corpus))
        )

    def log_q(self, item_ids: Tensor) -> Tensor:
        """`[N]` log of the unigram distribution."""
        log_q: Tensor = self.frequency(item_ids)
        return log_q

    def draw(self, users: Users, positives: Candidates, encode: ItemEncoder) -> Candidates:
        """The batch's own positives; the loss leaves each row's own item out by id."""
        return positives

    def observe(self, positives: Candidates) -> None:
        """Learn q from the batch, where it is learned."""
        if isinstance(self.frequency, StreamingFrequency):
            self.frequency.observe(positives.item_ids)
