"""`InBatchSampler`: the other positives of the batch, corrected for popularity (Eqs. 3-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.negatives.frequency import LogFrequency
from crossbatch.negatives.sampler import ItemEncoder, NegativeSampler, positive_counts

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.negatives.candidates import Candidates, Corpus


class InBatchSampler(NegativeSampler):
    """Negatives are the rest of the batch: no item is encoded for the sake of being a negative.

    An item is in the batch as often as it is a positive, so q is the unigram law of `corpus` and
    every logit, the positive's too, is `u·v − log q`.
    """

    def __init__(self, corpus: Corpus) -> None:
        super().__init__(corpus)
        self.frequency = LogFrequency(positive_counts(corpus))

    def log_q(self, item_ids: Tensor) -> Tensor:
        """`[N]` log of the unigram law."""
        log_q: Tensor = self.frequency(item_ids)
        return log_q

    def draw(self, users: Tensor, positives: Candidates, encode: ItemEncoder) -> Candidates:
        """The batch's own positives; the loss leaves each row's own item out by id."""
        return positives
