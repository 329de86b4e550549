"""`CrossBatchSoftmax`: cross-batch negatives in a training loop of your own.

loss_fn = CrossBatchSoftmax(dim=64, item_counts=counts)
for batch in loader:
    u, v = user_tower(batch), item_tower(batch)
    loss = loss_fn(u, v, batch["item_id"])       # was: cross_entropy(u @ v.T, arange(B))
    loss.backward(); optimizer.step(); optimizer.zero_grad()
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crossbatch.negatives.candidates import Candidates
from crossbatch.negatives.cross_batch import check_bank_options, with_bank
from crossbatch.negatives.diagnostics import diagnose, diagnose_bank
from crossbatch.negatives.frequency import LogFrequency
from crossbatch.negatives.loss import Reduction, check_softmax_options, sampled_softmax_loss
from crossbatch.negatives.masks import known_positives_mask
from crossbatch.negatives.memory_bank import MemoryBank
from crossbatch.negatives.streaming import StreamingFrequency
from crossbatch.queries import Queries


class CrossBatchSoftmax(nn.Module):
    """A loss with a memory: the batch's items and recently seen ones are the negatives.

    With `capacity=0`, no counts and distinct ids it equals
    `F.cross_entropy(u @ v.T / temperature, arange(B))`. It enqueues only in training mode with
    gradients enabled, after the loss is formed; all state is in `state_dict()`.

    The default item gradient is `"balanced"`. A cached column pushes the user tower but not the
    item tower, so with the published rule the items lose most of their mutual repulsion and can
    collapse into one direction. Balancing scales the in-batch items' gradient in their negative
    role by (B − 1 + rows read)/(B − 1), at no cost and with the same loss value. Pass
    `item_gradient="paper"` for the published rule.

    Keep this module *outside* a module wrapped in DistributedDataParallel: its buffer broadcast
    would overwrite every rank's bank with rank 0's.

    Args:
        dim: Dimension d of both towers' vectors.
        capacity: Rows of the bank; 0 for in-batch negatives alone.
        warmup_steps: Training calls before the bank is read; it fills meanwhile.
        item_counts: `[R]` how often each item is a positive in training; ids index it directly.
            A `StreamingFrequency` learns it from the batches. Without either, log q is left out,
            which is right only if items are about equally frequent.
        temperature: Divides the scores; use 0.05-0.1 with L2-normalised vectors.
        item_gradient: `"balanced"` or `"paper"`.
        mask: `"both"`, `"batch"` or `"none"`; see `sampled_softmax_loss`.
        fill_during_warmup: Whether the bank fills during warm-up.
        bank_dtype: Storage of the bank: `"float32"`, `"bfloat16"` or `"float16"`.
        chunk_size: Work through the columns in blocks of this size, to bound memory.
    """

    def __init__(
        self,
        dim: int,
        capacity: int = 2432,
        warmup_steps: int = 1000,
        item_counts: Tensor | StreamingFrequency | None = None,
        temperature: float = 1.0,
        item_gradient: str = "balanced",
        *,
        mask: str = "both",
        fill_during_warmup: bool = True,
        bank_dtype: str = "float32",
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        check_bank_options(warmup_steps, item_gradient)
        check_softmax_options(temperature, mask, chunk_size)
        self.bank = MemoryBank(capacity, dim, dtype=bank_dtype)
        self.frequency: LogFrequency | StreamingFrequency | None
        if item_counts is None or isinstance(item_counts, StreamingFrequency):
            self.frequency = item_counts
        else:
            self.frequency = LogFrequency(item_counts)
        self.warmup_steps = warmup_steps
        self.temperature = temperature
        self.item_gradient = item_gradient
        self.mask = mask
        self.fill_during_warmup = fill_during_warmup
        self.chunk_size = chunk_size
        self._last: tuple[Tensor | Queries, Candidates] | None = None

    def forward(
        self,
        users: Tensor | Queries,
        items: Tensor,
        item_ids: Tensor,
        *,
        exclude: Tensor | None = None,
        known_positives: Tensor | None = None,
        extra_negatives: Candidates | None = None,
        reduction: Reduction = "mean",
    ) -> Tensor:
        """Loss of the batch; in training it also enqueues the batch's items.

        Args:
            users: `[B, d]`; or `[B, K, d]` for K interests, of which the one that fits a row's
                positive best scores the row; or `Queries`, which score it together.
            items: `[B, d]` vectors of the positives.
            item_ids: `[B]` int64 ids of the positives.
            exclude: `[B, N]` bool, True for columns to leave out. The columns are the batch, then
                the bank's rows if it is read (`negatives()` shows them), then `extra_negatives`.
            known_positives: `[B, P]` ids of other items each user likes, padded with -1; those
                columns are left out of the user's row.
            extra_negatives: More columns, such as impressions that were not clicked.
            reduction: `"mean"`, `"sum"` or `"none"`.

        Returns:
            Scalar, or `[B]` for `reduction="none"`.
        """
        if not isinstance(users, Queries) and users.dim() == 3:
            users = best_interest(users, items)
        positives = Candidates(items, item_ids, self._log_q(item_ids))
        negatives = self.negatives(positives)
        if extra_negatives is not None:
            negatives = negatives + extra_negatives
        if known_positives is not None:
            known = known_positives_mask(known_positives, negatives.item_ids)
            exclude = known if exclude is None else exclude | known
        loss = sampled_softmax_loss(
            users,
            positives,
            negatives,
            temperature=self.temperature,
            reduction=reduction,
            mask=self.mask,
            exclude=exclude,
            chunk_size=self.chunk_size,
        )
        if self.training and torch.is_grad_enabled():
            self._remember(users, positives)
        return loss

    def negatives(self, positives: Candidates) -> Candidates:
        """The columns that a batch meets now: its own, then the bank's after warm-up."""
        if int(self.bank.step) < self.warmup_steps:
            return positives
        return with_bank(positives, self.bank.read(), self.item_gradient)

    def stats(self) -> dict[str, float]:
        """Diagnostics of the last training batch against the bank as it is now.

        Computed on each call, at about the cost of one loss; empty before the first training call.
        See `diagnostics.diagnose` and `diagnose_bank` for each number's definition.
        """
        if self._last is None:
            return {}
        users, positives = self._last
        cached = self.bank.read()
        older = self.bank.ages() > 0  # the batch itself was enqueued: it is no negative of its own
        cached = Candidates(
            cached.embeddings[older], cached.item_ids[older], cached.log_q[older], cached=True
        )
        negatives = positives
        if int(self.bank.step) > self.warmup_steps:
            negatives = with_bank(positives, cached, self.item_gradient)
        return diagnose_bank(self.bank, positives) | diagnose(
            users,
            positives,
            negatives,
            temperature=self.temperature,
            mask=self.mask,
            item_gradient=self.item_gradient,
        )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _remember(self, users: Tensor | Queries, positives: Candidates) -> None:
        if self.fill_during_warmup or int(self.bank.step) >= self.warmup_steps:
            self.bank.enqueue(positives)
        else:
            self.bank.skip()
        if isinstance(self.frequency, StreamingFrequency):
            self.frequency.observe(positives.item_ids)
        self._last = (
            users.detach(),
            Candidates(positives.embeddings.detach(), positives.item_ids, positives.log_q),
        )

    def _log_q(self, item_ids: Tensor) -> Tensor:
        if self.frequency is None:
            return torch.zeros(item_ids.shape, device=item_ids.device)
        log_q: Tensor = self.frequency(item_ids)
        return log_q


def best_interest(interests: Tensor, items: Tensor) -> Tensor:
    """The interest of each row that scores its own item highest (hard label-aware readout).

    Args:
        interests: `[B, K, d]`.
        items: `[B, d]`.

    Returns:
        `[B, d]`; gradient flows into the chosen interest alone.
    """
    if interests.dim() != 3 or items.shape != (interests.shape[0], interests.shape[2]):
        raise ValueError(
            "interests must have shape [B, K, d] and items [B, d], got "
            f"{list(interests.shape)} and {list(items.shape)}"
        )
    scores = torch.einsum("bkd,bd->bk", interests.detach().float(), items.detach().float())
    chosen = scores.argmax(dim=1)
    return interests[torch.arange(len(chosen), device=chosen.device), chosen]
