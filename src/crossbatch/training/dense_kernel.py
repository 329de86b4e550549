"""AdamW over the weights of layers compiled by numba: one call for all of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from crossbatch.training.row_kernels import compiled, move

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray
    Arrays = tuple[np.ndarray, ...]


@compiled
def adam(
    weights: Arrays,
    gradients: Arrays,
    first: Arrays,
    second: Arrays,
    counts: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> None:
    """One step of all weights, which are float32 `[n_i]`.

    Args:
        weights: Updated.
        gradients: As many.
        first: Their first moments, updated.
        second: Their second moments, updated.
        counts: Steps that each of them has taken, updated.
        lr: Learning rate.
        betas: β1, β2.
        eps: ε.
        decay: Decoupled decay.
    """
    for i in range(len(weights)):
        counts[i] += 1
        rates = (
            lr / (1 - betas[0] ** counts[i]),
            1 - betas[0],
            betas[1],
            1 - betas[1],
            1 / math.sqrt(1 - betas[1] ** counts[i]),
            eps,
            1 - lr * decay,
        )
        move(weights[i], first[i], second[i], gradients[i], rates)
