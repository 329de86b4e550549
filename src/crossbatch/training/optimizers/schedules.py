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

RATES = 1024  # computed at once: one costs as much


class RateOfStep:
    """Rates of single steps as numbers.

    Args:
        rate: Learning rates `[*]` of steps `[*]` (floating point, counted from 1).
    """

    def __init__(self, rate: Callable[[Tensor], Tensor]) -> None:
        self.rate = rate
        self._first, self._rates = 0, [0.0]  # of the steps from `_first` on

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        if not self._first <= step < self._first + len(self._rates):
            steps = torch.arange(step, step + RATES, dtype=torch.float64)
            self._first, self._rates = step, self.rate(steps).tolist()
        return self._rates[step - self._first]
