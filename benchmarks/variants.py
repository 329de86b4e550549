"""Rules to learn from a bank that were compared: the published one, ours, and others.

Each is a function of a batch and of cached vectors of earlier ones, and returns the loss whose
gradients train the towers. docs/negatives.md has the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from crossbatch.negatives import Candidates, sampled_softmax_loss
from crossbatch.negatives.cross_batch import balanced as balanced_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

HARDEST = 256  # cached columns that the rules of hard negatives keep
TOO_HARD = 64  # that `semi_hard` leaves out first: most likely what the user would like
ALIKE = 0.8  # cosine to a row's positive from which `ceiling` takes a column for one, too


@dataclass(frozen=True, slots=True)
class Step:
    """A batch and the cached vectors of earlier batches.

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
        self,
        users: Tensor,
        positives: Candidates,
        negatives: Candidates,
        reduction: str = "mean",
        exclude: Tensor | None = None,
    ) -> Tensor:
        """`sampled_softmax_loss` at the step's temperature."""
        return sampled_softmax_loss(
            users,
            positives,
            negatives,
            temperature=self.temperature,
            reduction=reduction,
            exclude=exclude,
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
    """As published: cached columns give a gradient to the user tower only."""
    return step.loss(step.users, step.positives, step.positives + step.items)


def balanced(step: Step) -> Tensor:
    """The gradient of the batch's items is scaled up to represent the bank's."""
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
    return _over(step, _by_hardness(step)[:HARDEST])


def semi_hard(step: Step) -> Tensor:
    """Balanced, over the next hardest: the very hardest may be what the user would like."""
    return _over(step, _by_hardness(step)[TOO_HARD : TOO_HARD + HARDEST])


def drawn_by_hardness(step: Step) -> Tensor:
    """Balanced, over columns drawn by how hard they are, and corrected for it.

    Column c is drawn with π_c, its share of the batch's softmax over the bank. K draws, each
    counted 1/(K π_c) times, have the bank's sum in expectation: the bias is that of a sampled
    softmax of K columns, whatever is hard.
    """
    items = step.items
    with torch.no_grad():
        share = _corrected_scores(step).softmax(dim=1).mean(dim=0)  # [M]
        drawn = torch.multinomial(share, HARDEST, replacement=True)
        log_times = (HARDEST * share[drawn]).log()
    kept = Candidates(
        items.embeddings[drawn], items.item_ids[drawn], items.log_q[drawn] + log_times, cached=True
    )
    return step.loss(
        step.users, step.positives, balanced_columns(step.positives, len(items)) + kept
    )


def ceiling(step: Step) -> Tensor:
    """Balanced, without cached columns that are too much like the row's own positive."""
    batch = balanced_columns(step.positives, len(step.items))
    with torch.no_grad():
        own = functional.normalize(step.positives.embeddings, dim=1)
        alike = own @ functional.normalize(step.items.embeddings, dim=1).T > ALIKE  # [B, M]
        exclude = torch.cat([alike.new_zeros(len(own), len(own)), alike], dim=1)
    return step.loss(step.users, step.positives, batch + step.items, exclude=exclude)


def _corrected_scores(step: Step) -> Tensor:
    """`[B, M]` scores less log q of cached columns; −inf for a row's own item."""
    scores = step.users @ step.items.embeddings.T / step.temperature - step.items.log_q
    own = step.positives.item_ids.unsqueeze(1) == step.items.item_ids
    return scores.masked_fill(own, -torch.inf)


def _by_hardness(step: Step) -> Tensor:
    """`[M]` cached columns, the one that some user of the batch scores highest first."""
    with torch.no_grad():
        scores = step.users @ step.items.embeddings.T
        own = step.positives.item_ids.unsqueeze(1) == step.items.item_ids
        return scores.masked_fill(own, -torch.inf).amax(dim=0).argsort(descending=True)


def _over(step: Step, keep: Tensor) -> Tensor:
    """The balanced loss over some of the cached columns."""
    items = step.items
    kept = Candidates(items.embeddings[keep], items.item_ids[keep], items.log_q[keep], cached=True)
    return step.loss(step.users, step.positives, balanced_columns(step.positives, len(kept)) + kept)


RULES: dict[str, Callable[[Step], Tensor]] = {
    "in-batch": in_batch,
    "paper": paper,
    "balanced": balanced,
    "split": split,
    "two banks": two_banks,
    "hardest": hardest,
    "semi-hard": semi_hard,
    "drawn by hardness": drawn_by_hardness,
    "ceiling": ceiling,
}
