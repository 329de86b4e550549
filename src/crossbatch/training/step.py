"""`Trainer`: one training step, which reads like the paper's equations; it needs torch alone.

trainer = Trainer(model, sampler, Adam(model))
for batch in batches:
    record = trainer.train_step(batch)
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from crossbatch.negatives import (
    Candidates,
    NegativeSampler,
    Queries,
    known_positives_mask,
    sampled_softmax_loss,
)
from crossbatch.queries import feature_rows

if TYPE_CHECKING:
    from crossbatch.training.optimizers import Adam


class TrainingBatch(Protocol):
    """What a batch must offer; `crossbatch.data.Batch` does."""

    @property
    def history(self) -> Tensor:
        """`[B, L]` item ids, 0 for padding."""

    @property
    def item_ids(self) -> Tensor:
        """`[B]` ids of the positives."""

    @property
    def user_ids(self) -> Tensor:
        """`[B]` rows of the user features."""

    @property
    def later(self) -> tuple[Tensor, Tensor] | None:
        """Ids of what came after the positives, and their batch offsets; for `mask_later` alone."""


class TwoTowerModel(Protocol):
    """What a model must offer; any `nn.Module` with these three methods can be trained."""

    def __call__(
        self, history: Tensor, item_ids: Tensor, user_ids: Tensor | None = None
    ) -> tuple[Tensor | Queries, Tensor]:
        """Vectors u `[B, d]`, or `Queries`, and v `[B, d]` of a batch."""

    def items(self, item_ids: Tensor) -> Tensor:
        """`[N, d]` item vectors."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What happened in one step."""

    step: int
    loss: Tensor  # scalar, detached
    lr: float
    users: Tensor | Queries  # [B, d], detached
    positives: Candidates
    negatives: Candidates


@dataclass(slots=True)
class Trainer:
    """Towers, sampler and optimiser, and the step that joins them.

    Attributes:
        model: A `TwoTowerModel`.
        sampler: Where negatives come from.
        optimizer: `Adam` over the model and the temperature.
        log_temperature: Parameter or constant; the temperature is its exponential.
        mask: As in `sampled_softmax_loss`.
        mask_history: Whether a row's history items are no negatives of it.
        mask_later: Whether items that come later in a row's sequence are no negatives of it.
        targets: `[num_items + 1]` bool, which items the sampler may draw, where items that were
            shown with a row's positive are negatives of that row; None where they are not.
        l2: Weight of the mean squared length of user and item vectors.
        accumulate: Batches per optimiser step.
        autocast: `torch.bfloat16` for mixed precision, or None.
        chunk_size: As in `sampled_softmax_loss`.
        step: Batches so far.
    """

    model: TwoTowerModel
    sampler: NegativeSampler
    optimizer: Adam
    log_temperature: Tensor = field(default_factory=lambda: torch.zeros(()))
    mask: str = "both"
    mask_history: bool = False
    mask_later: bool = False
    targets: Tensor | None = None
    l2: float = 0.0
    accumulate: int = 1
    autocast: torch.dtype | None = None
    chunk_size: int | None = None
    step: int = 0

    def train_step(self, batch: TrainingBatch) -> StepRecord:
        """One batch: forward, loss, backward, update, observe."""
        u, positives, negatives, loss = self.forward(batch)
        self.backward(u, positives, loss)
        self.step += 1
        loss, lr = self.update(loss.detach())
        self.sampler.observe(positives)  # enqueue, dequeue
        return StepRecord(self.step, loss, lr, u.detach(), positives, negatives)

    def forward(
        self, batch: TrainingBatch
    ) -> tuple[Tensor | Queries, Candidates, Candidates, Tensor]:
        """User vectors `[B, d]`, positives, negatives, and the loss of a batch."""
        ids = batch.item_ids
        with self._precision(ids.device):
            u, v = self.model(batch.history, ids, *feature_rows(self.model, batch))  # f_u, g_v
            positives = Candidates(v, ids, self.sampler.log_q(ids))
            negatives = self.sampler.draw(u, positives, self.model.items)  # M ∪ B for CBNS
        return u, positives, negatives, self.loss(u, positives, negatives, batch)

    def loss(
        self,
        u: Tensor | Queries,
        positives: Candidates,
        negatives: Candidates,
        batch: TrainingBatch,
    ) -> Tensor:
        """Mean loss of rows u `[B, d]` and their own positives."""
        exclude, shown = self.exclude(batch, negatives), getattr(batch, "shown", None)
        if self.targets is not None and shown is not None and len(shown[0]):
            columns, others = self.shown(shown, batch.item_ids, len(negatives))
            if exclude is None:
                exclude = others.new_zeros(len(others), len(negatives))
            exclude, negatives = torch.cat([exclude, others], dim=1), negatives + columns
        return sampled_softmax_loss(  # Eqs. 2, 4, 9
            u,
            positives,
            negatives,
            temperature=self.temperature,
            mask=self.mask,
            exclude=exclude,
            chunk_size=self.chunk_size,
        )

    def shown(
        self, shown: tuple[Tensor, Tensor], positives: Tensor, num_negatives: int
    ) -> tuple[Candidates, Tensor]:
        """Columns of the items that were shown, and `[B, S]` the rows that each is no negative of.

        Among N columns that are drawn by q, an item that is shown for certain is expected N q + 1
        times: its column has the correction log(q + 1/N), which is finite for any item.

        Args:
            shown: Items shown with the rows' positives, end to end, and their batch offsets.
            positives: `[B]` ids.
            num_negatives: N, of the other columns.
        """
        assert self.targets is not None
        ids = shown[0].unique()
        drawn = self.targets[ids]
        log_q = torch.full(ids.shape, -math.inf, device=ids.device)
        log_q[drawn] = self.sampler.log_q(ids[drawn])
        log_q = torch.logaddexp(log_q, torch.tensor(-math.log(max(num_negatives, 1))))
        own = known_positives_mask(shown[0], ids, shown[1])
        others = ~own | (ids == positives.unsqueeze(1))
        return Candidates(self.model.items(ids), ids, log_q), others

    def exclude(self, batch: TrainingBatch, negatives: Candidates) -> Tensor | None:
        """`[B, N]` which columns are other items that the row's user liked; None for no mask."""
        masks = []
        if self.mask_history:
            known = batch.history.masked_fill(batch.history == 0, -1)
            masks.append(known_positives_mask(known, negatives.item_ids))
        if self.mask_later:
            if batch.later is None:
                raise ValueError("mask_later needs what came later: dataset.batches(later=True)")
            ids, offsets = batch.later
            masks.append(known_positives_mask(ids, negatives.item_ids, offsets))
        return masks[0] | masks[1] if len(masks) == 2 else next(iter(masks), None)

    def backward(self, u: Tensor | Queries, positives: Candidates, loss: Tensor) -> None:
        """Leave the gradients of the objective for the optimiser."""
        if self.l2:
            loss = loss + self.l2 * squared_length(u, positives.embeddings) / len(positives)
        torch.autograd.backward(loss / self.accumulate if self.accumulate > 1 else loss)

    def update(self, loss: Tensor) -> tuple[Tensor, float]:
        """Move the weights once enough batches are in: the batch's loss, the rate used or 0."""
        return loss, self.optimizer.step() if self.step % self.accumulate == 0 else 0.0

    def whole(self, rows: Tensor | Queries) -> Tensor | Queries:
        """`rows` of the whole batch, where other processes have a part of it; see `RankTrainer`."""
        return rows

    @property
    def temperature(self) -> Tensor | float:
        """exp(log_temperature): a tensor while it is learned."""
        if self.log_temperature.requires_grad:
            return self.log_temperature.exp()
        return math.exp(float(self.log_temperature))

    def _precision(self, device: torch.device) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)


def squared_length(u: Tensor | Queries, v: Tensor) -> Tensor:
    """Sum of all squared coordinates of user vectors or queries and of item vectors."""
    vectors = u.vectors if isinstance(u, Queries) else u
    return vectors.square().sum() + v.square().sum()
