"""Learning-rate schedules: pure functions of the step, so that any past rate can be recomputed."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# (base rate, steps [*] float64, total steps) → rates [*]
Schedule = Callable[[float, Tensor, int], Tensor]


def constant(lr: float, step: Tensor, total: int) -> Tensor:
    """The base rate throughout, as in the paper."""
    return torch.full_like(step, lr)


def cosine(lr: float, step: Tensor, total: int) -> Tensor:
    """From the base rate down to 0 along half a cosine."""
    progress = (step / total).clamp(max=1.0)
    return lr * 0.5 * (1 + torch.cos(math.pi * progress))


def exponential(lr: float, step: Tensor, total: int) -> Tensor:
    """From the base rate down to a hundredth of it, by a constant factor per step."""
    return lr * 0.01 ** (step / total).clamp(max=1.0)


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "cosine": cosine,
    "exponential": exponential,
}
