"""`GradientBank`: cached columns that teach the item tower too, when they leave the bank.

    bank = GradientBank(capacity=2432, dim=64)
    cached, pairs = bank.columns(encode, arriving=len(positives))
    loss = sampled_softmax_loss(u, positives, balanced(positives, len(cached) - pairs) + cached)
    loss.backward()                                    # or after the next line
    bank.enqueue(positives)

The vectors of a bank are constants, so a loss gives the item tower no gradient for them. Here a row
collects that gradient from every loss that reads it. When the row leaves, its item is encoded once
more and the sum goes through the tower: the whole item-side gradient of B + M columns, for B
further items encoded per step, however large M is. It comes late, by the M/B steps that a row stays
in the bank, while the pull of a positive comes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from crossbatch.negatives.candidates import Candidates
from crossbatch.negatives.memory_bank import MemoryBank

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.negatives.samplers import ItemEncoder


class GradientBank(MemoryBank):
    """A bank whose rows add up the gradients that losses have for them.

    Args:
        capacity: Number of rows M.
        dim: Dimension d of the rows.
        dtype: Storage type of the rows; the sums are float32.
    """

    gradients: Tensor  # [2M, d] sum of the gradients of the losses that have read the row
    reads: Tensor  # [2M] number of those losses

    ROW_BUFFERS = (*MemoryBank.ROW_BUFFERS, "gradients", "reads")
    FULL_PRECISION = (*MemoryBank.FULL_PRECISION, "gradients")

    def __init__(self, capacity: int, dim: int, *, dtype: str = "float32") -> None:
        super().__init__(capacity, dim, dtype=dtype)
        self.register_buffer("gradients", torch.zeros(2 * capacity, dim))
        self.register_buffer("reads", torch.zeros(2 * capacity, dtype=torch.int64))
        self._appended = 0  # rows in the life of this object

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def columns(
        self, encode: ItemEncoder, arriving: int, newest: int | None = None
    ) -> tuple[Candidates, int]:
        """The written rows as columns that collect gradients, oldest first.

        The rows that leave when `arriving` ones are enqueued get theirs: their items are encoded,
        and the backward pass sends the sums through the tower.

        Args:
            encode: The item tower.
            arriving: Rows that will be enqueued after this loss.
            newest: Read this many of the youngest rows at most.

        Returns:
            The columns, and how many pairs of a loss and a row the sums consist of. A bank in its
            steady state has as many as columns; fewer while it fills.
        """
        cached = self.read(newest)
        if len(cached) == 0 or not torch.is_grad_enabled():
            return cached, len(cached)
        window = self._window()
        leaving = slice(window.start, window.start + self._leaving(arriving))
        read_now = max(0, leaving.stop - (window.stop - len(cached)))  # of those that leave
        vectors = self.gradients.new_zeros(0, self.dim).requires_grad_()
        if leaving.stop > leaving.start:
            vectors = encode(self.item_ids[leaving].clone())
        embeddings: Tensor = _Collect.apply(  # type: ignore[no-untyped-call]
            vectors, cached.embeddings, self.gradients[leaving].clone(), read_now, self
        )
        columns = Candidates(embeddings, cached.item_ids, cached.log_q, cached=True, live=True)
        return columns, int(self.reads[leaving].sum()) + read_now

    def collect(self, gradients: Tensor, appended: int) -> None:
        """Add gradients of the newest rows as they were when `appended` rows had been appended."""
        stop = int(self.cursor) - (self._appended - appended)
        start = max(stop - len(gradients), self._window().start)  # some may have left since
        if start < stop:
            self.gradients[start:stop] += gradients[len(gradients) - (stop - start) :]
            self.reads[start:stop] += 1

    def _append(self, rows: Tensor, item_ids: Tensor, log_q: Tensor) -> None:
        super()._append(rows, item_ids, log_q)
        self._appended += rows.shape[0]

    def _leaving(self, arriving: int) -> int:
        return min(max(len(self) + arriving - self.capacity, 0), len(self))


class _Collect(torch.autograd.Function):
    """The cached vectors; their gradient goes to the bank, the collected sums to the tower."""

    @staticmethod
    def forward(
        ctx: Any, leaving: Tensor, cached: Tensor, sums: Tensor, read_now: int, bank: GradientBank
    ) -> Tensor:
        ctx.sums, ctx.read_now, ctx.dtype = sums, read_now, leaving.dtype
        ctx.bank, ctx.appended = bank, bank._appended
        return cached.view_as(cached)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        gradient = gradient.detach().to(ctx.sums.dtype)
        ctx.bank.collect(gradient, ctx.appended)
        sums = ctx.sums
        if ctx.read_now:
            sums[len(sums) - ctx.read_now :] += gradient[: ctx.read_now]
        return sums.to(ctx.dtype), None, None, None, None
