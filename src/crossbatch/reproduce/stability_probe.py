"""`StabilityProbe`: feature drift (Eq. 5) and the lemma, measured while a run learns.

    fit(dataset, recipe, out, probe=StabilityProbe(dataset, recipe))

Each measurement looks back 1, 5 and 10 mini-batches, the paper's Δt. It takes its snapshots after
the checkpoint before it, so that a killed run measures the same when it resumes.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

import torch

from crossbatch.evaluation import encode_items
from crossbatch.evaluation.drift import feature_drift, gradient_error
from crossbatch.evaluation.recommenders import evaluation_mode
from crossbatch.negatives import Candidates, CrossBatchSampler
from crossbatch.queries import feature_rows
from crossbatch.training.build import draw_batches, pick_device

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset
    from crossbatch.training import Trainer

INTERVALS = (1, 5, 10)  # Δt of the paper's figure, in mini-batches
EARLY = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7)  # also measured, in shares of the first evaluation interval
NUM_USERS = 8  # whose Jacobians are computed: d backward passes each


class StabilityProbe:
    """Measures once an evaluation interval, more often within the first.

    The users of the lemma are the same few throughout, so that a curve over training is about
    training.
    """

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        train = recipe.train
        self.num_items = dataset.num_items
        self.device = pick_device(train.device)
        self.every = train.eval_every
        self.early = {round(share * train.eval_every) for share in EARLY}
        self.batch = next(draw_batches(train, dataset, batch_size=NUM_USERS, seed=0))
        self.snapshots: dict[tuple[int, int], Tensor] = {}  # (measured at, Δt) -> [N, d]

    def __call__(self, trainer: Trainer, step: int) -> dict[str, Any] | None:
        """Take a snapshot or measure, if it is time."""
        ahead = [interval for interval in INTERVALS if self.measures_at(step + interval)]
        if not ahead and not self.measures_at(step):
            return None
        vectors = self._vectors(trainer)
        self.snapshots |= {(step + interval, interval): vectors for interval in ahead}
        if not self.measures_at(step):
            return None
        found: dict[str, Any] = {"drift": self._drift(vectors, step)}
        sampler = trainer.sampler
        if isinstance(sampler, CrossBatchSampler) and len(sampler.bank):
            found["lemma"] = self._lemma(trainer, sampler.bank.read())
        return found

    @property
    def measuring(self) -> bool:
        """Whether snapshots wait for the measurement that they are for."""
        return bool(self.snapshots)

    def measures_at(self, step: int) -> bool:
        """Whether the window of Δt that ends at `step` begins right after a checkpoint."""
        start = step - max(INTERVALS) - 1
        return start >= 0 and (start % self.every == 0 or start in self.early)

    def _vectors(self, trainer: Trainer) -> Tensor:
        """Vectors `[N, d]` of all items; rows that dense Adam left behind catch up first."""
        trainer.optimizer.flush()
        with evaluation_mode(trainer.model, seed=0):
            return encode_items(cast("Any", trainer.model), self.num_items, device=self.device)[1:]

    def _drift(self, now: Tensor, step: int) -> dict[str, dict[str, float]]:
        drifts = {}
        for interval in INTERVALS:
            before = self.snapshots.pop((step, interval), None)
            if before is not None:  # None where evaluations come within a window
                d = feature_drift(now, before)
                drifts[str(interval)] = {"sum": d.total, "mean": d.mean, "relative": d.relative}
        return drifts

    def _lemma(self, trainer: Trainer, bank: Candidates) -> dict[str, float]:
        # A copy's gradients are plain ones, and whatever happens to it is not training.
        model = cast("Any", copy.deepcopy(trainer.model))
        with evaluation_mode(model, seed=0):
            rows = feature_rows(model, self.batch)
            batch = (self.batch.history, self.batch.item_ids, *rows)
            users, _ = model(*(column.to(self.device) for column in batch))
            with torch.no_grad():
                fresh = model.items(bank.item_ids)
            error = gradient_error(users, model.parameters(), fresh, bank.embeddings.float())
        return {
            "epsilon": float(error.drift.mean()),
            "deviation": float(error.deviation.mean()),
            "deviation_max": float(error.deviation.max()),
            "bound": float(error.bound.mean()),
            "relative": float(error.deviation.sum() / error.gradient.sum()),
            "constant": float(error.constant.max()),
            "jacobian_mean": float(error.jacobian.mean()),
            "jacobian": float(error.jacobian.max()),
        }
