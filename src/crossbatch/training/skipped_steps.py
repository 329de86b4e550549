"""`SkippedSteps`: how far a row of a table drifts under Adam while it gets no gradient.

Adam moves a row without gradient too, as its moments decay. With m, v the moments at step s, steps
s+1 … s+j move its weight by −m/√v · Σ a_i / (b_i + ε/√v), where for a learning rate lr_t

    a_i = α_{s+i} β1^i      α_t = lr_t / (1 − β1^t)
    b_i = h_{s+i} β2^{i/2}  h_t = 1 / √(1 − β2^t)

All that this sum needs of s and j are the power sums M_k(s, j) = Σ_{i=1..j} a_i b_i^k. The part
beyond j is a sum of the same kind that starts at s + j, so one table over s has them all:

    M_k(s, j) = F_k(s) − ρ_k^j F_k(s + j)      ρ_k = β1 β2^{k/2}
    F_k(s)    = M_k(s, ∞) = ρ_k (α_{s+1} h_{s+1}^k + F_k(s + 1))
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

POWERS = np.array([0, 1, 2, 3, -1, -2, -3, -4])  # k of the columns
BLOCK = 1024  # steps that the table grows by, at least
NEGLIGIBLE = 1e-14  # ρ^i below this leaves nothing that a sum in float64 could see


class SkippedSteps:
    """Tables of F_k and of ρ_k^j, as far as training has come.

    Args:
        rate: Learning rates `[*]` of steps `[*]` (float64, counted from 1).
        betas: Decay of the two moments.

    Attributes:
        sums: `[T, 8]` F_k(s) for s = 0 … T − 1, columns in the order of `POWERS`.
        decay: `[H, 8]` ρ_k^j for j = 0 … H − 1; what follows is 0.
        alpha: `[T + H]` α_t.
        h: `[T + H]` h_t.
    """

    def __init__(self, rate: Callable[[Tensor], Tensor], betas: tuple[float, float]) -> None:
        self._rate, self._betas = rate, betas
        ratio = betas[0] * betas[1] ** (POWERS / 2)  # ρ_k
        slowest = float(ratio.max())
        horizon = math.ceil(math.log(NEGLIGIBLE) / math.log(slowest)) if slowest > 0 else 1
        self._ratio = ratio
        self.decay = ratio ** np.arange(horizon)[:, None]
        self.sums = np.zeros((0, len(POWERS)))
        self.alpha, self.h = np.zeros(0), np.zeros(0)

    def reach(self, step: int) -> None:
        """Let the tables cover starts up to `step`."""
        if step >= len(self.sums):
            start = len(self.sums)
            self._grow(start, max(step + 1, 2 * start, BLOCK))

    def _grow(self, start: int, stop: int) -> None:
        horizon = len(self.decay)
        steps = np.arange(stop + horizon, dtype=np.float64)
        steps[0] = 1.0  # there is no step 0; any value will do
        self.alpha = self._rate(torch.from_numpy(steps)).numpy() / (1 - self._betas[0] ** steps)
        self.h = 1 / np.sqrt(1 - self._betas[1] ** steps)
        terms = self.alpha[:, None] * self.h[:, None] ** POWERS
        sums = np.zeros((stop + horizon, len(POWERS)))
        for s in range(stop + horizon - 2, start - 1, -1):
            sums[s] = self._ratio * (terms[s + 1] + sums[s + 1])
        self.sums = np.concatenate([self.sums, sums[start:stop]])
