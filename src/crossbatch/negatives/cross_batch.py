"""`CrossBatchSampler`: in-batch negatives and a bank of recent item vectors (CBNS, Eq. 9)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from crossbatch.negatives.candidates import Candidates, Corpus
from crossbatch.negatives.deferred import GradientBank
from crossbatch.negatives.memory_bank import DriftGauge, MemoryBank
from crossbatch.negatives.samplers import InBatchSampler, ItemEncoder, Users, positive_counts

if TYPE_CHECKING:
    from torch import Tensor


ITEM_GRADIENTS = ("paper", "balanced", "deferred")


class CrossBatchSampler(InBatchSampler):
    """Negatives are M ∪ B without I: thousands of columns, none of them encoded for the purpose.

    For `warmup_steps` iterations this is plain in-batch sampling while vectors settle; then the
    bank's rows join. Bank and batch have the same unigram distribution: one −log q fits both.

    `item_gradient` decides what the item tower learns. Cached columns push the user tower only, so
    as published an item gets about B/(B + M) of the push that a true batch of that size would give
    it as a negative, while its pull as a positive grows: item vectors can drift into one direction,
    and with normalised content towers they do. `"balanced"` lets the in-batch columns stand in for
    the bank by scaling their gradient *in their negative role* by (B − 1 + rows read)/(B − 1),
    which leaves the loss unchanged and has the expectation of the true large batch, but a high
    variance. `"deferred"` has that of the true large batch: a cached row collects the gradients of
    the losses that read it, and when it leaves the bank its item is encoded once more and the sum
    goes through the tower (`GradientBank`). `"paper"` is the published method to the bit.

    Args:
        corpus: Item counts and dimension.
        capacity: Rows M of the bank; 0 is plain in-batch.
        warmup_steps: Iterations before the bank is read. The paper uses 40,000 on Amazon-Books,
            which is one pass over its training samples.
        item_gradient: `"paper"`, `"balanced"` or `"deferred"`.
        fill_during_warmup: Whether the bank fills during warm-up, so that it is full when first
            read; otherwise it starts empty when warm-up ends.
        bank_dtype: Storage of the bank: `"float32"`, `"bfloat16"` or `"float16"`.
        streaming_q: As in `InBatchSampler`; a cached row keeps the estimate of its own time.
        max_staleness: If above 0, read only as many of the newest rows as are on average at most
            this stale (relative distance to the present vector), as `DriftGauge` measures while
            training. It makes the bank grow into use as vectors settle, so that `warmup_steps`
            needs no search; 0.1 held on all data we tried.
        max_repeats: If above 0, read at most so many rows, `max_repeats / Σq²`, that a row's item
            is on average in this many others: a bank beyond 1/Σq² rows, the number of equally
            likely items, holds the popular ones over and over. With both limits `capacity` needs
            no search either.
        guard: Whether the training loop may switch the bank off for good (`switch_off`) when the
            diagnostics predict harm.
    """

    off: Tensor

    def __init__(
        self,
        corpus: Corpus,
        *,
        capacity: int = 2432,
        warmup_steps: int = 40_000,
        item_gradient: str = "paper",
        fill_during_warmup: bool = True,
        bank_dtype: str = "float32",
        streaming_q: bool = False,
        max_staleness: float = 0.0,
        max_repeats: float = 0.0,
        guard: bool = False,
    ) -> None:
        super().__init__(corpus, streaming_q=streaming_q)
        check_bank_options(warmup_steps, item_gradient)
        if not 0 <= max_staleness < 1:
            raise ValueError(f"max_staleness must be between 0 (off) and 1, got {max_staleness}")
        if not 0 <= max_repeats < math.inf:
            raise ValueError(
                f"max_repeats must be finite and not negative (0 is off), got {max_repeats}"
            )
        kind = GradientBank if item_gradient == "deferred" else MemoryBank
        self.bank = kind(capacity, corpus.dim, dtype=bank_dtype)
        self.warmup_steps = warmup_steps
        self.item_gradient = item_gradient
        self.fill_during_warmup = fill_during_warmup
        self.max_staleness = max_staleness
        self.drift = DriftGauge() if max_staleness else None
        self.max_rows = int(max_repeats / _collision(corpus)) if max_repeats else capacity
        self.guard = guard
        self.register_buffer("off", torch.zeros((), dtype=torch.bool, device="cpu"))

    def draw(self, users: Users, positives: Candidates, encode: ItemEncoder) -> Candidates:
        """The batch's positives and, after warm-up, the rows of the bank."""
        if int(self.bank.step) < self.warmup_steps or bool(self.off):
            return positives
        newest = self.max_rows
        if self.drift is not None:
            fresh = self.drift.readable_rows(self.max_staleness, len(positives))
            newest = min(newest, fresh)
        if isinstance(self.bank, GradientBank):
            return with_deferred(positives, self.bank, encode, newest)
        return with_bank(positives, self.bank.read(newest), self.item_gradient)

    def observe(self, positives: Candidates) -> None:
        """Enqueue the positives at the end of the iteration; the oldest rows leave."""
        super().observe(positives)
        if self.drift is not None:
            self.drift.observe(self.bank, positives)
        if self.fill_during_warmup or int(self.bank.step) >= self.warmup_steps:
            self.bank.enqueue(positives)
        else:
            self.bank.skip()

    def switch_off(self) -> None:
        """Never read the bank again: plain in-batch sampling from here on, after a resume too."""
        self.off = torch.ones_like(self.off)


def _collision(corpus: Corpus) -> float:
    """Σq², the probability that two positives are the same item."""
    q = positive_counts(corpus).double()
    q /= q.sum()
    return float(q @ q)


def with_bank(positives: Candidates, cached: Candidates, item_gradient: str) -> Candidates:
    """B ∪ M, with the item-side gradient of choice; an empty bank gives the positives alone."""
    if len(cached) == 0:
        return positives
    if item_gradient == "balanced":
        positives = balanced(positives, len(cached))
    return positives + cached


def with_deferred(
    positives: Candidates, bank: GradientBank, encode: ItemEncoder, newest: int | None = None
) -> Candidates:
    """B ∪ M, whose rows collect gradients; the batch stands in for what they cannot give yet."""
    columns: tuple[Candidates, int] = bank.columns(encode, len(positives), newest)
    cached, pairs = columns
    if len(cached) == 0:
        return positives
    missing = len(cached) - pairs
    return (balanced(positives, missing) if missing > 0 else positives) + cached


def balanced(positives: Candidates, num_cached: int) -> Candidates:
    """The batch in its negative role: the same values, their gradient scaled to stand in for M."""
    others = len(positives) - 1
    if others == 0:
        return positives
    return Candidates(
        positives.embeddings,
        positives.item_ids,
        positives.log_q,
        first_row=positives.first_row,
        push=(others + num_cached) / others,
    )


def check_bank_options(warmup_steps: int, item_gradient: str) -> None:
    """Raise `ValueError` for options that no bank sampler can honour."""
    if not isinstance(warmup_steps, int) or warmup_steps < 0:
        raise ValueError(f"warmup_steps must be 0 or more, got {warmup_steps!r}")
    if item_gradient not in ITEM_GRADIENTS:
        raise ValueError(
            f"item_gradient must be one of {', '.join(ITEM_GRADIENTS)}, got {item_gradient!r}"
        )
