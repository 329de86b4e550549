"""`DirectTrainer`: the step of `Trainer` with the way back written out.

The loss gives its gradients along with its value, and each tower brings the one it is given to its
weights, so that no graph is built between them. Losses and gradients are those of `Trainer`, which
is what to read to understand the step; `tests/training/test_reference.py` holds the two together
for every model and sampler.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, cast

from crossbatch import kernels
from crossbatch.models import TwoTower
from crossbatch.models.passes import items_pass, users_pass
from crossbatch.negatives import Candidates
from crossbatch.negatives.direct import LossAndGradients, loss_and_gradients
from crossbatch.training.step import Trainer

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.models.passes import Backward, Pass
    from crossbatch.training.step import TrainingBatch


@dataclass(slots=True)
class DirectTrainer(Trainer):
    """A `Trainer` of towers of ours on a CPU; see `fits`."""

    _items: Pass = field(init=False, repr=False)
    _users: Pass = field(init=False, repr=False)
    _temperature: float = field(init=False, repr=False, default=1.0)
    _found: LossAndGradients | None = field(init=False, repr=False, default=None)
    _user_side: Backward | None = field(init=False, repr=False, default=None)
    _item_sides: list[tuple[Tensor, Backward]] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        model = cast("TwoTower", self.model)
        self._items, self._users = items_pass(model), users_pass(model)
        self._temperature = float(self.temperature)

    @staticmethod
    def fits(trainer: Trainer) -> bool:
        """Whether a trainer's step has this form: nothing but towers, columns and their softmax."""
        plain = not (trainer.l2 or trainer.autocast or trainer.chunk_size)
        constant = not trainer.log_temperature.requires_grad
        on_cpu = trainer.log_temperature.device.type == "cpu"
        ours = type(trainer) is Trainer and type(trainer.model) is TwoTower
        return plain and constant and on_cpu and ours and kernels.available()

    @classmethod
    def of(cls, trainer: Trainer) -> DirectTrainer:
        """The same trainer, direct."""
        return cls(**{f.name: getattr(trainer, f.name) for f in fields(Trainer)})

    def forward(self, batch: TrainingBatch) -> tuple[Tensor, Candidates, Candidates, Tensor]:
        """User vectors `[B, d]`, positives, negatives, and the loss of a batch."""
        self._item_sides = []
        ids = batch.item_ids
        v = self._encode(ids)
        u, self._user_side = self._users(v, batch.history, batch.user_ids)
        positives = Candidates(v, ids, self.sampler.log_q(ids))
        negatives = self.sampler.draw(u, positives, self._encode)
        self._found = loss_and_gradients(
            u,
            positives,
            negatives,
            temperature=self._temperature,
            mask=self.mask,
            exclude=self.exclude(batch, negatives),
        )
        return u, positives, negatives, self._found.loss

    def backward(self, u: Tensor, positives: Candidates, loss: Tensor) -> None:
        """Bring the gradients of the loss to the weights."""
        found, user_side = self._found, self._user_side
        assert found is not None
        assert user_side is not None
        if self.accumulate > 1:
            found.divide_(self.accumulate)
        of_items = user_side(found.users)
        for number, (vectors, item_side) in enumerate(self._item_sides):
            gradient = found.of(vectors)
            if number == 0 and of_items is not None:
                gradient = of_items if gradient is None else gradient + of_items
            if gradient is not None:
                item_side(gradient)
        self._found, self._user_side, self._item_sides = None, None, []

    def _encode(self, item_ids: Tensor) -> Tensor:
        vectors, backward = self._items(item_ids)
        self._item_sides.append((vectors, backward))
        return vectors
