"""`CrossBatchSoftmax`: cross-batch negatives in a training loop of your own.

loss_fn = CrossBatchSoftmax(dim=64, item_counts=counts)
for batch in loader:
    u, v = user_tower(batch), item_tower(batch)
    loss = loss_fn(u, v, batch["item_id"])       # was: cross_entropy(u @ v.T, arange(B))
    loss.backward(); optimizer.step(); optimizer.zero_grad()
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crossbatch.negatives.candidates import Candidates
from crossbatch.negatives.cross_batch import check_bank_options, with_bank, with_deferred
from crossbatch.negatives.deferred import GradientBank
from crossbatch.negatives.diagnostics import diagnose, diagnose_bank
from crossbatch.negatives.frequency import LogFrequency, StreamingFrequency
from crossbatch.negatives.gathering import Gathered
from crossbatch.negatives.loss import Reduction, check_softmax_options, sampled_softmax_loss
from crossbatch.negatives.masks import known_positives_mask
from crossbatch.negatives.memory_bank import MemoryBank
from crossbatch.negatives.pairs import Pairs, weighted
from crossbatch.queries import Queries, best_interest

if TYPE_CHECKING:
    from crossbatch.negatives.samplers import ItemEncoder


class CrossBatchSoftmax(nn.Module):
    """A loss with a memory: the batch's items and recently seen ones are the negatives.

    With `capacity=0`, no counts and distinct ids it equals
    `F.cross_entropy(u @ v.T / temperature, arange(B))`. It enqueues only in training mode with
    gradients enabled, after the loss is formed; all state is in `state_dict()`.

    The default item gradient is `"balanced"`. A cached column pushes the user tower but not the
    item tower, so with the published rule the items lose most of their mutual repulsion and can
    collapse into one direction. Balancing scales the in-batch items' gradient in their negative
    role by (B − 1 + rows read)/(B − 1), at no cost and with the same loss value. `"deferred"` has
    less variance and encodes B further items a step: pass the item tower with each batch,
    `loss_fn(u, v, ids, encode=item_tower)`; see `GradientBank`. `item_gradient="paper"` is the
    published rule.

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
        item_gradient: `"balanced"`, `"deferred"` or `"paper"`.
        mask: `"both"`, `"batch"` or `"none"`; see `sampled_softmax_loss`.
        fill_during_warmup: Whether the bank fills during warm-up.
        bank_dtype: Storage of the bank: `"float32"`, `"bfloat16"` or `"float16"`.
        chunk_size: Work through the columns in blocks of this size, to bound memory.
        symmetric: Whether the loss is the mean of both directions: each user among items, and each
            item among the batch's users (whose rows have other items; the bank has no users).
        process_group: Whose processes share their batches, such as
            `torch.distributed.group.WORLD`: the columns are those of all, with gradient, and all
            banks get them, so that they stay equal. The mean over the processes is the loss of
            the whole batch, and so is the gradient that DistributedDataParallel averages. All of
            them must call the loss equally often.
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
        symmetric: bool = False,
        process_group: Any = None,
    ) -> None:
        super().__init__()
        check_bank_options(warmup_steps, item_gradient)
        check_softmax_options(temperature, mask, chunk_size)
        if process_group is not None and item_gradient == "deferred":
            raise ValueError(
                'item_gradient="deferred" collects the gradients of one process alone: pass '
                'item_gradient="balanced" with process_group'
            )
        kind = GradientBank if item_gradient == "deferred" else MemoryBank
        self.bank = kind(capacity, dim, dtype=bank_dtype)
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
        self.symmetric = symmetric
        self.process_group = process_group
        self._last: tuple[Tensor | Queries, Candidates] | None = None

    def forward(
        self,
        users: Tensor | Queries,
        items: Tensor,
        item_ids: Tensor,
        *,
        weights: Tensor | None = None,
        exclude: Tensor | None = None,
        known_positives: Tensor | None = None,
        extra_negatives: Candidates | None = None,
        encode: ItemEncoder | None = None,
        reduction: Reduction = "mean",
    ) -> Tensor:
        """Loss of the batch; in training it also enqueues the batch's items.

        Args:
            users: `[B, d]`; or `[B, K, d]` for K interests, of which the one that fits a row's
                positive best scores the row; or `Queries`, which score it together.
            items: `[B, d]` vectors of the positives; `[B, P, d]` for up to P of each row, of whose
                losses the row's is the mean. A row's other positives are no negatives of it.
            item_ids: `[B]` int64 ids of the positives; `[B, P]` with −1 where a row has fewer.
            weights: `[B]` of the rows; the mean is then Σ w·loss / Σ w.
            exclude: `[B, N]` bool, True for columns to leave out. The columns are the batch (all
                its positives, of all processes), then the bank's rows if it is read
                (`negatives()` shows them), then `extra_negatives`.
            known_positives: `[B, P]` ids of other items each user likes, padded with -1; those
                columns are left out of the user's row.
            extra_negatives: More columns, such as impressions that were not clicked.
            encode: The item tower, ids `[N]` to vectors `[N, d]`; for `item_gradient="deferred"`.
            reduction: `"mean"`, `"sum"` or `"none"`.

        Returns:
            Scalar, or `[B]` for `reduction="none"`.
        """
        pairs = Pairs(items, item_ids)
        users = pairs.users(users)
        if not isinstance(users, Queries) and users.dim() == 3:
            users = best_interest(users, pairs.items)
        gathered = None
        if self.process_group is not None:
            gathered = Gathered(self.process_group, len(pairs.items), pairs.items.device)
        own, everyone = self._positives(pairs, gathered)
        negatives = self.negatives(everyone, encode)
        if extra_negatives is not None:
            negatives = negatives + extra_negatives
        exclude, known_positives = pairs.of_rows(exclude), pairs.known(known_positives)
        if known_positives is not None:
            known = known_positives_mask(known_positives, negatives.item_ids)
            exclude = known if exclude is None else exclude | known
        simple = gathered is None and weights is None and not (self.symmetric or pairs.several)
        options: dict[str, Any] = {
            "temperature": self.temperature,
            "reduction": reduction if simple else "none",
            "mask": self.mask,
            "chunk_size": self.chunk_size,
        }
        loss = sampled_softmax_loss(users, own, negatives, exclude=exclude, **options)
        if self.symmetric:
            loss = (loss + self._items_to_users(users, own, exclude, gathered, options)) / 2
        if not simple:
            loss = weighted(pairs.losses(loss), weights, reduction, gathered)
        if self.training and torch.is_grad_enabled():
            self._remember(users, own, everyone)
        return loss

    def _positives(self, pairs: Pairs, gathered: Gathered | None) -> tuple[Candidates, Candidates]:
        """The positives of this process, and of all processes that share the batch."""
        if gathered is None:
            own = Candidates(pairs.items, pairs.item_ids, self._log_q(pairs.item_ids))
            return own, own
        ids = gathered.rows(pairs.item_ids)
        log_q, mine = self._log_q(ids), gathered.own  # which a streaming q reads off the whole
        vectors = gathered.rows(pairs.items)
        everyone = Candidates(vectors, ids, log_q, first_row=mine.start)
        return Candidates(pairs.items, pairs.item_ids, log_q[mine]), everyone

    def _items_to_users(
        self,
        users: Tensor | Queries,
        own: Candidates,
        exclude: Tensor | None,
        gathered: Gathered | None,
        options: dict[str, Any],
    ) -> Tensor:
        """`[n]` losses of each positive's user among the users of the batch."""
        if isinstance(users, Queries):
            raise ValueError("symmetric=True needs user vectors [B, d] or [B, K, d], got Queries")
        none = torch.zeros_like(own.log_q)  # users are drawn alike
        right = columns = Candidates(users, own.item_ids, none)
        total = len(own) if gathered is None else gathered.total
        liked = None if exclude is None else exclude[:, :total]  # own users, items of all
        if gathered is not None:
            ids, first = gathered.rows(own.item_ids), gathered.own.start
            none = none.new_zeros(gathered.total)
            columns = Candidates(gathered.rows(users), ids, none, first_row=first)
            liked = None if liked is None else gathered.rows(liked.byte())[:, gathered.own].bool()
        liked = None if liked is None else liked.T.contiguous()
        return sampled_softmax_loss(own.embeddings, right, columns, exclude=liked, **options)

    def negatives(self, positives: Candidates, encode: ItemEncoder | None = None) -> Candidates:
        """The columns that a batch meets now: its own, then the bank's after warm-up."""
        if int(self.bank.step) < self.warmup_steps:
            return positives
        if isinstance(self.bank, GradientBank) and self.training and torch.is_grad_enabled():
            if encode is None:
                raise ValueError(
                    'item_gradient="deferred" encodes the items that leave the bank: pass the item '
                    "tower, loss_fn(u, v, item_ids, encode=item_tower)"
                )
            return with_deferred(positives, self.bank, encode)
        return with_bank(positives, self.bank.read(), self.item_gradient)

    def __deepcopy__(self, memo: dict[int, Any]) -> CrossBatchSoftmax:
        memo[id(self.process_group)] = self.process_group  # processes cannot be copied
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__ = copy.deepcopy(self.__dict__, memo)
        return twin

    def extra_repr(self) -> str:
        """The options, as shown by `print(loss_fn)`."""
        names = ("warmup_steps", "temperature", "item_gradient", "mask", "symmetric")
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        gathers = "" if self.process_group is None else ", process_group=…"
        return f"dim={self.bank.dim}, capacity={self.bank.capacity}, {options}{gathers}"

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
    def _remember(
        self, users: Tensor | Queries, positives: Candidates, everyone: Candidates
    ) -> None:
        if self.fill_during_warmup or int(self.bank.step) >= self.warmup_steps:
            self.bank.enqueue(everyone)
        else:
            self.bank.skip()
        if isinstance(self.frequency, StreamingFrequency):
            self.frequency.observe(everyone.item_ids)
        self._last = (
            users.detach(),
            Candidates(positives.embeddings.detach(), positives.item_ids, positives.log_q),
        )

    def _log_q(self, item_ids: Tensor) -> Tensor:
        if self.frequency is None:
            return torch.zeros(item_ids.shape, device=item_ids.device)
        log_q: Tensor = self.frequency(item_ids)
        return log_q
