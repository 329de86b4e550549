"""Ways to learn from a bank that were tried: published, kept, and kept out of the library.

Each is a function of a batch and of what is remembered of earlier ones, and returns the loss whose
gradients are to be followed. docs/negatives.md says what came of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from crossbatch.negatives import Candidates, sampled_softmax_loss
from crossbatch.negatives.cross_batch import balanced as balanced_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

HARDEST = 256  # cached columns that `hardest` keeps


@dataclass(frozen=True, slots=True)
class Step:
    """A batch and its memories.

    Attributes:
        users: `[B, d]`.
        positives: B columns.
        items: Cached columns.
        earlier: Cached users as columns: their vectors, the ids of their positives, and as `log_q`
            the log of the partition function that they met.
        temperature: Of the softmax.
    """

    users: Tensor
    positives: Candidates
    items: Candidates
    earlier: Candidates
    temperature: float

    def loss(
        self, users: Tensor, positives: Candidates, negatives: Candidates, reduction: str = "mean"
    ) -> Tensor:
        """`sampled_softmax_loss` at the step's temperature."""
        return sampled_softmax_loss(
            users, positives, negatives, temperature=self.temperature, reduction=reduction
        )

    def log_partition(self) -> Tensor:
        """`[B]` log Σ e^{s'} over batch and bank, of each row."""
        with torch.no_grad():
            rows = self.loss(self.users, self.positives, self.positives + self.items, "none")
            own = (self.users * self.positives.embeddings).sum(dim=1) / self.temperature
        return rows + own - self.positives.log_q


def in_batch(step: Step) -> Tensor:
    """No bank."""
    return step.loss(step.users, step.positives, step.positives)


def paper(step: Step) -> Tensor:
    """As published: cached columns push the user tower alone."""
    return step.loss(step.users, step.positives, step.positives + step.items)


def balanced(step: Step) -> Tensor:
    """The batch stands in for the bank on the item side."""
    batch = balanced_columns(step.positives, len(step.items))
    return step.loss(step.users, step.positives, batch + step.items)


def split(step: Step) -> Tensor:
    """Users learn from batch and bank, items from the in-batch softmax."""
    still = step.positives.detached()
    users = step.loss(step.users, still, still + step.items)
    items = step.loss(step.users.detach(), step.positives, step.positives)
    return users + items - items.detach()


def two_banks(step: Step) -> Tensor:
    """Cached users, each with the partition function it met, push the live items too.

    The push that a user j gives an item i is p_ji u_j with p_ji = e^{s'_ji} / Z_j; it is the
    gradient of p_ji itself while Z_j is a constant.
    """
    loss = paper(step)
    scores = step.positives.embeddings @ step.earlier.embeddings.T / step.temperature  # [B, M]
    scores = scores - step.positives.log_q.unsqueeze(1) - step.earlier.log_q
    own = step.positives.item_ids.unsqueeze(1) == step.earlier.item_ids
    push = scores.clamp(max=0).exp().masked_fill(own, 0.0).sum() / len(step.users)
    return loss + push - push.detach()


def hardest(step: Step) -> Tensor:
    """Balanced, over those cached columns that some user of the batch scores highest."""
    with torch.no_grad():
        scores = step.users @ step.items.embeddings.T
        own = step.positives.item_ids.unsqueeze(1) == step.items.item_ids
        top = scores.masked_fill(own, -torch.inf).amax(dim=0)
        keep = top.topk(min(HARDEST, len(top))).indices
    items = step.items
    kept = Candidates(items.embeddings[keep], items.item_ids[keep], items.log_q[keep], cached=True)
    batch = balanced_columns(step.positives, len(kept))
    return step.loss(step.users, step.positives, batch + kept)


RULES: dict[str, Callable[[Step], Tensor]] = {
    "in-batch": in_batch,
    "paper": paper,
    "balanced": balanced,
    "split": split,
    "two banks": two_banks,
    "hardest": hardest,
}
