"""A training step of any size on generated batches, for growth curves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from crossbatch.data import Batch
from crossbatch.kernels.memory import keep_freed_memory
from crossbatch.models import FeatureTable, build_model
from crossbatch.negatives import SAMPLERS, Candidates, Corpus, CrossBatchSampler
from crossbatch.training.optimizers import Adam
from crossbatch.training.step import Trainer
from measure.floor import HIDDEN, Shape, columns
from measure.shape import TOWER_OF, sampler_options, tower_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

CATEGORIES = 1_600
BATCHES = 64  # made before timing, then used in turn


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve.

    Attributes:
        model: Which user tower.
        sampler: Where negatives come from.
        shape: Sizes of the step.
        num_items: Size of the catalogue.
    """

    model: str
    sampler: str
    shape: Shape = field(default_factory=Shape)
    num_items: int = 313_966

    def reduced(self) -> Point:
        """The same in a small catalogue, for smoke runs."""
        return replace(self, num_items=10_000)

    @property
    def table_bytes(self) -> int:
        """Weights and two moments of the id table."""
        return 3 * 4 * self.shape.d * (self.num_items + 1)

    def prepared(self) -> Callable[[], object]:
        """Build everything, fill the bank, return one step."""
        keep_freed_memory()  # as a training run does
        torch.manual_seed(0)
        shape = self.shape
        categories = torch.randint(CATEGORIES, (self.num_items + 1,))
        towers = build_model(
            TOWER_OF.get(self.model, self.model),
            self.num_items,
            shape.d,
            history="content",
            tower=tower_options(self.model, shape),
            item={"hidden": (HIDDEN,), "feature_dims": {"category": shape.d}},
            item_features={
                "category": FeatureTable("categorical", categories, num_values=CATEGORIES)
            },
        )
        corpus = Corpus(torch.ones(self.num_items + 1, dtype=torch.int64), shape.d)
        sampler = SAMPLERS[self.sampler](corpus, **sampler_options(self.sampler, shape))
        if isinstance(sampler, CrossBatchSampler) and shape.M:
            ids = popular(self.num_items, shape.M)
            sampler.bank.enqueue(Candidates(torch.randn(shape.M, shape.d), ids, sampler.log_q(ids)))
        trainer = Trainer(towers, sampler, Adam(towers, semantics="lazy"))
        batches = self._batches()
        return lambda: trainer.train_step(next(batches))

    def _batches(self) -> Iterator[Batch]:
        """Batches of full histories: what a position costs shows without padding."""
        B, L = self.shape.B, self.shape.L
        made = [
            Batch(
                user_ids=torch.arange(B),
                history=popular(self.num_items, B * L).view(B, L),
                item_ids=popular(self.num_items, B),
            )
            for _ in range(BATCHES)
        ]
        while True:
            yield from made


def popular(num_items: int, count: int) -> Tensor:
    """Ids `[count]` with p ∝ 1 / (rank + 150), the head and tail of Amazon-Books."""
    growth = (num_items + 150.0) / 151.0
    ids = (151.0 * growth ** torch.rand(count, dtype=torch.float64)).long() - 150
    return ids.clamp_(1, num_items)


def distinct_rows(shape: Shape, sampler: str, num_items: int) -> int:
    """Rows of the id table that a batch like those of `Point` reads."""
    torch.manual_seed(0)
    read = [popular(num_items, shape.B * shape.L), popular(num_items, shape.B)]
    if drawn := columns(sampler, shape).encoded - shape.B:
        read.append(torch.randint(1, num_items + 1, (drawn,)))
    return len(torch.cat(read).unique())
