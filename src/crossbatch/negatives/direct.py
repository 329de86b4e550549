"""The sampled softmax for whoever walks back without autograd: a loss and its gradients at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from crossbatch.negatives.fused import own_place
from crossbatch.negatives.loss import NonFiniteLossError, blame
from crossbatch.negatives.masks import MASKS

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.negatives.candidates import Candidates

    Array = np.ndarray

NOTHING = np.empty((0, 0), dtype=np.float32)  # the gradient of columns that need none


@dataclass(slots=True)
class LossAndGradients:
    """The mean loss of a batch and its gradients, which are arrays: compiled functions go on.

    Attributes:
        loss: Scalar.
        users: `[B, d]`.
        items: Vectors `[n, d]` that got a gradient, and the gradient. Those of the positives come
            twice where the batch is not among the negatives as it stands.
    """

    loss: Tensor
    users: Array
    items: list[tuple[Tensor, Array]]

    def of(self, vectors: Tensor) -> Array | None:
        """The gradient `[n, d]` of item vectors `[n, d]` that were given, all their roles added."""
        found = [gradient for given, gradient in self.items if given is vectors]
        for more in found[1:]:
            found[0] += more
        return found[0] if found else None

    def divide_(self, number: float) -> None:
        """Make them the gradients of a share of the loss."""
        for gradient in (self.users, *(gradient for _, gradient in self.items)):
            gradient /= number


def loss_and_gradients(
    users: Tensor,
    positives: Candidates,
    negatives: Candidates,
    *,
    temperature: float = 1.0,
    mask: str = "both",
    exclude: Tensor | None = None,
) -> LossAndGradients:
    """`sampled_softmax_loss` of float32 vectors on a CPU, in one compiled call.

    Arguments as there.
    """
    from crossbatch.negatives import softmax_kernel

    own, parts = positives.embeddings, negatives.parts
    row_keys, column_keys = MASKS[mask](positives.item_ids, negatives)
    place = own_place(positives, negatives)
    vectors = [part.embeddings.numpy() for part in parts]
    grad_users = np.empty(users.shape, dtype=np.float32)
    grad_own = NOTHING if place is not None else np.empty(own.shape, dtype=np.float32)
    grads = [
        NOTHING if part.cached else np.empty(given.shape, dtype=np.float32)
        for part, given in zip(parts, vectors, strict=True)
    ]
    loss = softmax_kernel.loss_and_gradients(
        users.numpy(),
        temperature,
        own.numpy(),
        tuple(vectors),
        tuple([part.push for part in parts]),
        negatives.log_q.numpy(),
        row_keys.numpy(),
        column_keys.numpy(),
        softmax_kernel.NOTHING if exclude is None else exclude.numpy(),
        positives.log_q.numpy(),
        -1 if place is None else place,
        grad_users,
        grad_own,
        tuple(grads),
    )
    if not math.isfinite(loss):
        raise NonFiniteLossError(blame(users / temperature, positives, negatives))
    items = [] if place is not None else [(own, grad_own)]
    for part, grad in zip(parts, grads, strict=True):
        if not part.cached:
            items.append((part.embeddings, grad))
    scalar = torch.from_numpy(np.array(loss, dtype=np.float32))
    return LossAndGradients(scalar, grad_users, items)
