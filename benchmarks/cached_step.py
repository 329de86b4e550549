"""A training step with the loss of a whole batch whose rows are encoded a few at a time.

step = CachedStep(trainer, chunk_size=32)
step(batch)         # gradients of the whole batch, memory for the states of 32 rows

It is `CachedSoftmax` with the towers, the negatives, the loss and the optimiser of a `Trainer`;
only the order of encoding differs from `Trainer.train_step`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crossbatch.negatives import CachedSoftmax, Candidates

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.data.dataset.batches import Batch
    from crossbatch.training.step import Trainer


class CachedStep:
    """One step of a trainer, in chunks.

    Args:
        trainer: Its users are one vector each, without features of their own.
        chunk_size: Rows that are encoded at once.
    """

    def __init__(self, trainer: Trainer, chunk_size: int) -> None:
        self.trainer = trainer
        model: Any = trainer.model
        self.cached = CachedSoftmax(
            self._loss,
            lambda history: model.users(history)[:, 0],
            model.items,
            chunk_size=chunk_size,
        )

    def __call__(self, batch: Batch) -> Tensor:
        """Learn from a batch, and return its loss."""
        loss: Tensor = self.cached(batch.history, batch.item_ids, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.trainer.step += 1
        return self.trainer.update(loss.detach())[0]

    def _loss(self, u: Tensor, v: Tensor, batch: Batch) -> Tensor:
        trainer, ids = self.trainer, batch.item_ids
        positives = Candidates(v, ids, trainer.sampler.log_q(ids))
        negatives = trainer.sampler.draw(u, positives, trainer.model.items)
        return trainer.loss(u, positives, negatives, batch)
