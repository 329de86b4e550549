"""Catching up rows of a table that Adam would have moved while they got no gradient.

`torch.optim.Adam` moves *every* row at *every* step, because moments decay and a decayed moment
still moves its weight. Walking 314 k rows per step costs a hundred times the step itself. A row
without gradient moves deterministically, though, so its skipped steps can be made up for when it is
next read. With m, v its moments at step s and j steps skipped,

    w ← w − m/√v · Σ_{i=1..j} a_i / (b_i + r)      r = ε/√v
    m ← β1^j m,  v ← β2^j v

where for a learning rate lr_t

    a_i = α_{s+i} β1^i      α_t = lr_t / (1 − β1^t)
    b_i = h_{s+i} β2^{i/2}  h_t = 1 / √(1 − β2^t)

All that this sum needs of s and j are the power sums M_k(s, j) = Σ_{i=1..j} a_i b_i^k. The part
beyond j is a sum of the same kind that starts at s + j, so one table over s has them all:

    M_k(s, j) = F_k(s) − ρ_k^j F_k(s + j)      ρ_k = β1 β2^{k/2}
    F_k(s)    = M_k(s, ∞) = ρ_k (α_{s+1} h_{s+1}^k + F_k(s + 1))

As b_i hardly changes while a_i dies out, an expansion around its weighted mean b̄ (first order
vanishes, third is kept) gives the sum to float rounding for any r:

    Σ a_i/(b_i + r) ≈ A/(b̄ + r) + S2/(b̄ + r)³ − S3/(b̄ + r)⁴      S_k = Σ a_i (b_i − b̄)^k

In the first steps of training b_i does change, but r is small beside it, unless gradients are:

    Σ a_i/(b_i + r) ≈ M_{−1} − r M_{−2} + r² M_{−3} − r³ M_{−4}
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    array,
    check_ids,
    usable,
)
from crossbatch.kernels.row_updates import AdamTables
from crossbatch.kernels.skipped_steps_compiled import catch_up

if TYPE_CHECKING:
    from collections.abc import Callable

POWERS = (0, 1, 2, 3, -1, -2, -3, -4)  # k of the columns
BLOCK = 1024  # steps that the tables grow by, at least
NEGLIGIBLE = 1e-14  # ρ^i below this leaves nothing that a sum in float64 could see
FIRST_FLAT_STEP = 500  # from here on the expansion around b̄ is exact to float rounding
SMALL = 0.01  # a series of four terms in r/b is exact to float rounding below this


class SkippedSteps:
    """Makes up for the steps of Adam in which rows got no gradient.

    Args:
        rate: Learning rates `[*]` of steps `[*]` (float64, counted from 1).
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.

    Attributes:
        sums: `[T, 8]` F_k(s) for s = 0 … T − 1, columns in the order of `POWERS`.
        decay: `[H, 8]` ρ_k^j for j = 0 … H − 1; what follows is 0.
        alpha: `[T + H]` α_t.
        h: `[T + H]` h_t.
    """

    def __init__(
        self, rate: Callable[[Tensor], Tensor], betas: tuple[float, float], eps: float
    ) -> None:
        self._rate, self.betas, self.eps = rate, betas, eps
        self._tables = AdamTables()
        powers = torch.tensor(POWERS, dtype=torch.float64)
        self._ratio = betas[0] * betas[1] ** (powers / 2)  # ρ_k
        slowest = float(self._ratio.max())
        horizon = math.ceil(math.log(NEGLIGIBLE) / math.log(slowest)) if slowest > 0 else 1
        self.decay = self._ratio ** torch.arange(horizon, dtype=torch.float64)[:, None]
        self.sums = torch.zeros(0, len(POWERS), dtype=torch.float64)
        self.alpha = self.h = torch.zeros(0, dtype=torch.float64)

    def reach(self, step: int) -> None:
        """Let the tables cover starts up to `step`."""
        if step >= len(self.sums):
            start = len(self.sums)
            self._grow(start, max(step + 1, 2 * start, BLOCK))

    def catch_up(
        self, ids: Tensor, weight: Tensor, first: Tensor, second: Tensor, touched: Tensor, step: int
    ) -> None:
        """Bring the rows `ids` `[n]` to `step`, as if every step since their last had moved them.

        Args:
            ids: Rows, repeats welcome.
            weight: `[R, d]`, updated like those that follow.
            first: `[R, d]` first moments.
            second: `[R, d]` second moments.
            touched: `[R]` int32 last step of each row; 0 for never, and such rows stay.
            step: Step to reach.
        """
        self.reach(step)
        tables = self._tables.arrays(weight, first, second, touched)
        if tables is None or not usable(ids=[ids]):
            self._make_up(ids.unique(), weight, first, second, touched, step)
            return
        check_ids(ids=ids)
        arrays = self.sums.numpy(), self.decay.numpy()
        rates = self.betas[1], self.eps, FIRST_FLAT_STEP
        if not catch_up(array(ids), *tables, step, *arrays, *rates):
            raise IndexError(f"ids must be rows of the table, 0 to {len(weight) - 1}")

    def _grow(self, start: int, stop: int) -> None:
        doublings = (len(self.decay) - 1).bit_length()
        steps = torch.arange(stop + 2**doublings, dtype=torch.float64)
        steps[0] = 1.0  # there is no step 0; any value will do
        self.alpha = self._rate(steps) / (1 - self.betas[0] ** steps)
        self.h = 1 / (1 - self.betas[1] ** steps).sqrt()
        powers = torch.tensor(POWERS, dtype=torch.float64)
        alpha, h = self.alpha[start + 1 :, None], self.h[start + 1 :, None]
        # Sums of 1, 2, 4 … terms from each step on: those behind the horizon are negligible.
        sums = self._ratio * alpha * h**powers
        for i in range(doublings):
            sums = sums[: -(2**i)] + self._ratio ** (2**i) * sums[2**i :]
        self.sums = torch.cat([self.sums, sums])

    def _make_up(
        self,
        rows: Tensor,
        weight: Tensor,
        first: Tensor,
        second: Tensor,
        touched: Tensor,
        step: int,
    ) -> None:
        """`catch_up` of distinct rows, in plain torch."""
        last = touched[rows]
        rows = rows[(last > 0) & (last < step)]  # never touched: m = 0, stays
        if rows.numel() == 0:
            return
        start = touched[rows].long()
        mean, square = first[rows], second[rows]
        moments = self._moments(start, step)
        flat = start >= FIRST_FLAT_STEP
        total = torch.where(
            flat.unsqueeze(1),
            _around_the_mean(moments, square, self.eps),
            _in_powers_of_r(moments, square, self.eps),
        )
        small = self.eps * moments[-2] < SMALL * square.sqrt() * moments[-1]
        odd = (~flat & ~small.all(dim=1)).nonzero().squeeze(1)
        if odd.numel():
            total[odd] = self._term_by_term(start[odd], step, square[odd])
        weight[rows] -= mean * total
        gap = (step - start).double().unsqueeze(1)
        first[rows] = mean * (self.betas[0] ** gap).to(mean.dtype)
        second[rows] = square * (self.betas[1] ** gap).to(mean.dtype)
        touched[rows] = step

    def _moments(self, start: Tensor, step: int) -> dict[int, Tensor]:
        """M_k(s, step − s) of rows last touched at s = `start` `[n]`, by k: `[n, 1]` each."""
        sums, decay = self.sums.to(start.device), self.decay.to(start.device)
        gap = (step - start).clamp(max=len(decay) - 1)  # the last ones are as good as 0
        values = sums[start] - decay[gap] * sums[step]
        return {int(k): values[:, i : i + 1] for i, k in enumerate(POWERS)}

    def _term_by_term(self, start: Tensor, step: int, second: Tensor) -> Tensor:
        """Σ a_i / (b_i √v + ε) as written, `[n, d]`."""
        beta1, beta2 = self.betas
        alpha, h = self.alpha.to(start.device), self.h.to(start.device)
        root, total = second.sqrt(), torch.zeros_like(second)
        for i in range(1, min(int((step - start).max()), len(self.decay)) + 1):
            a = torch.where(start + i <= step, alpha[start + i] * beta1**i, 0.0).unsqueeze(1)
            b = (h[start + i] * beta2 ** (i / 2)).unsqueeze(1)
            total += (a / (root * b + self.eps)).to(total.dtype)
        return total


def _around_the_mean(M: dict[int, Tensor], second: Tensor, eps: float) -> Tensor:
    """Σ a/(b + r) / √v by its expansion around b̄."""
    mean = M[1] / M[0].clamp(min=1e-300)
    A, centre, S2, S3 = (
        value.to(second.dtype)
        for value in (M[0], mean, M[2] - mean * M[1], M[3] - 3 * mean * M[2] + 2 * mean**2 * M[1])
    )
    root = second.sqrt()
    # Multiplied through by √v, so that v = 0 needs no case of its own.
    y = 1 / (centre * root + eps)
    x = root * y  # 1 / (b̄ + ε/√v), [n, d]
    return y * (A + x * x * (S2 - S3 * x))


def _in_powers_of_r(M: dict[int, Tensor], second: Tensor, eps: float) -> Tensor:
    """Σ a/(b + r) / √v by its series in r = ε/√v."""
    root = second.sqrt().clamp(min=1e-30)
    r = eps / root
    i1, i2, i3, i4 = (M[-k].to(second.dtype) for k in (1, 2, 3, 4))
    return (i1 - r * (i2 - r * (i3 - r * i4))) / root
