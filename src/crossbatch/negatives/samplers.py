"""Samplers: the interface of all strategies, and those without a bank.

positives = Candidates(v, ids, sampler.log_q(ids))
negatives = sampler.draw(u, positives, encode)
loss = sampled_softmax_loss(u, positives, negatives)
...                                                  # backward, optimiser step
sampler.observe(positives)

`InBatchSampler` has the other positives of the batch, corrected for popularity (Eqs. 3-4),
`UniformSampler` items drawn from the whole catalogue, shared by the batch (Eq. 1), `MixedSampler`
both (MNS, Yang et al. 2020).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from crossbatch.kernels.distinct_ids import distinct_ids
from crossbatch.negatives.candidates import Candidates, Corpus
from crossbatch.negatives.frequency import LogFrequency, StreamingFrequency, check_ids
from crossbatch.queries import Queries

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


class MixedSampler(InBatchSampler):
    """B in-batch columns and `num_uniform` uniform ones, both with gradient.

    A column may have come from either stream, so the proposal that makes the estimate of the
    partition function unbiased at the least variance is the mixture

        Q*(i) = (B · p(i) + B' / num_items) / (B + B')        p unigram, B' = num_uniform

    for *every* column, whichever stream it came from. Correcting all columns by p, by nothing, or
    with the two weights swapped is biased by 1.3-1.6× on popularity-correlated scores.

    Args:
        corpus: Item counts and dimension.
        num_uniform: Uniform columns B' per batch; 0 is plain in-batch.
        correction: `"mixture"` as above, or `"per_stream"`: −log p for in-batch columns and
            −log(1/num_items) for uniform ones; also unbiased, with more variance.
        batch_size: B in the mixture. By default it is read off the batch: `log_q` takes the number
            of ids that it is given.
        every: Iterations from one draw of uniform items to the next; those between are in-batch
            ones, each estimate with the q of its own. Most of the cost of uniform items does
            not depend on their number, so 4 B of them every fourth time cost less than B each time.
    """

    turn: Tensor  # scalar int64, iterations so far; only where uniform items take turns

    def __init__(
        self,
        corpus: Corpus,
        *,
        num_uniform: int = 1152,
        correction: str = "mixture",
        batch_size: int | None = None,
        every: int = 1,
    ) -> None:
        super().__init__(corpus)
        if num_uniform < 0:
            raise ValueError(f"num_uniform must be 0 or more, got {num_uniform}")
        if correction not in ("mixture", "per_stream"):
            raise ValueError(f"correction must be 'mixture' or 'per_stream', got {correction!r}")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 or None, got {batch_size}")
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.num_uniform = min(num_uniform, self.num_items)
        self.correction = correction
        self.batch_size = batch_size
        self.every = every
        self._mixture: tuple[tuple[int, torch.device], Tensor] | None = None  # of a batch size
        if every > 1:
            self.register_buffer("turn", torch.zeros((), dtype=torch.int64))

    @property
    def draws_uniform(self) -> bool:
        """Whether this iteration has uniform items."""
        return self.num_uniform > 0 and (self.every == 1 or int(self.turn) % self.every == 0)

    def log_q(self, item_ids: Tensor) -> Tensor:
        """`[N]` log Q* of the batch's positives (log p with `correction="per_stream"`)."""
        log_p = super().log_q(item_ids)  # checks the ids, too
        if self.correction == "per_stream" or not self.draws_uniform:
            return log_p
        return self._log_mixture(item_ids, self.batch_size or item_ids.shape[0])

    def draw(self, users: Users, positives: Candidates, encode: ItemEncoder) -> Candidates:
        """The batch's positives and fresh uniform items."""
        if not self.draws_uniform:
            return positives
        ids = draw_distinct(self.num_items, self.num_uniform, positives.item_ids.device)
        if self.correction == "per_stream":
            log_q = torch.full(ids.shape, -math.log(self.num_items), device=ids.device)
        else:
            log_q = self._log_mixture(ids, self.batch_size or len(positives))
        return positives + Candidates(encode(ids), ids, log_q)

    def observe(self, positives: Candidates) -> None:
        """Count the iteration, where uniform items take turns."""
        super().observe(positives)
        if self.every > 1:
            self.turn += 1

    def _log_mixture(self, item_ids: Tensor, batch_size: int) -> Tensor:
        """`[N]` log Q*; an item unseen in training has p = 0 and a finite Q*."""
        log_p = cast("LogFrequency", self.frequency).log_q  # [num_items + 1]
        if self._mixture is None or self._mixture[0] != (batch_size, log_p.device):
            total = batch_size + self.num_uniform
            uniform = math.log(self.num_uniform / total) - math.log(self.num_items)
            unigram = log_p + math.log(batch_size / total)
            table = torch.logaddexp(unigram, torch.full_like(unigram, uniform))
            # Two functions of every column in every step otherwise.
            self._mixture = (batch_size, log_p.device), table
        return self._mixture[1].index_select(0, item_ids)
