"""`RowAdam`: Adam over embedding tables at the cost of the rows that a batch reads.

`torch.optim.Adam` moves *every* row at *every* step, because moments decay and a decayed moment
still moves its weight. Walking 314 k rows per step costs a hundred times the step itself. A row
without gradient moves deterministically, though, so its skipped steps can be made up for when it is
next read. With m, v its moments at step s and j steps skipped,

    w ← w − m/√v · Σ_{i=1..j} a_i / (b_i + r)      r = ε/√v
    m ← β1^j m,  v ← β2^j v

with a_i and b_i as in `SkippedSteps`, which has the sums M_k = Σ a_i b_i^k. As b_i hardly changes
while a_i dies out, an expansion around its weighted mean b̄ (first order vanishes, third is kept)
gives the sum to float rounding for any r:

    Σ a_i/(b_i + r) ≈ A/(b̄ + r) + S2/(b̄ + r)³ − S3/(b̄ + r)⁴      S_k = Σ a_i (b_i − b̄)^k

In the first steps of training b_i does change, but r is small beside it, unless gradients are:

    Σ a_i/(b_i + r) ≈ M_{−1} − r M_{−2} + r² M_{−3} − r³ M_{−4}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from crossbatch.kernels.pages import on_large_pages
from crossbatch.models.pass_parts import Arrays
from crossbatch.training.row_sums import CompiledSums, RowReads, add_up
from crossbatch.training.skipped_steps import POWERS, SkippedSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from crossbatch.models import EmbeddingTable
    from crossbatch.models.embedding import Read

# From this step on the expansion around b̄ is exact to float rounding.
FIRST_FLAT_STEP = 500
SMALL = 0.01  # a series of four terms in r/b is exact to float rounding below this


class RowAdam(RowReads):
    """Adam for one table, whose moments and last steps of rows it keeps.

    Args:
        table: The table to look after; it is told so (`table.keeper`).
        rate: Learning rates `[*]` of steps `[*]` (floating point, counted from 1).
        semantics: `"dense"` for the trajectory of `torch.optim.Adam`; `"lazy"` moves only rows that
            got a gradient (as `torch.optim.SparseAdam`), so that rare items keep still.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay of the rows that got a gradient; others are left alone.
        compiled: Whether to use the numba kernels; by default where numba is installed and the
            table is float32 on a CPU.
    """

    def __init__(
        self,
        table: EmbeddingTable,
        rate: Callable[[Tensor], Tensor],
        *,
        semantics: str = "dense",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        compiled: bool | None = None,
    ) -> None:
        if semantics not in ("dense", "lazy"):
            raise ValueError(f"semantics must be 'dense' or 'lazy', got {semantics!r}")
        self.table = table
        self.dense = semantics == "dense"
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        weight = table.weight.detach()
        self.steps = 0
        # m, v: [R, d]
        self.first, self.second = (
            on_large_pages(torch.empty_like(weight)).zero_() for _ in range(2)
        )
        # [R] last step whose update a row contains; 0 for never.
        self.touched = torch.zeros(weight.shape[0], dtype=torch.int32, device=weight.device)
        self._skipped = SkippedSteps(rate, betas)
        self.reads: list[Read] = []  # since the last step
        self._sums = CompiledSums.of(table, compiled=compiled)
        self._arrays = Arrays([table.weight, self.first, self.second, self.touched])
        table.keeper = self

    def before_read(self, ids: Tensor) -> None:
        """Bring the rows of `ids` `[n]` to the current step."""
        if self.dense:
            self.catch_up(ids)

    def replace_reads(self, reads: list[Read]) -> None:
        """Take these for what was read: those of all processes that have a copy of the table."""
        for read in reads:
            self.before_read(read.ids)
        self.reads = reads

    def step(self) -> None:
        """Apply the gradients of all reads since the last step to the rows that were read."""
        self.steps += 1
        found = self.take_gradients()
        if found and self._sums:
            self._update_compiled(self._sums, found)
        elif found:
            with torch.no_grad():
                self._update(*add_up(found, self.table.padding_row))

    def _update(self, rows: Tensor, gradient: Tensor) -> None:
        """One Adam step of `rows` `[n]` by their gradients `[n, d]`."""
        step, (beta1, beta2) = self.steps, self.betas
        self._skipped.reach(step)
        first = self.first.index_select(0, rows).lerp_(gradient, 1 - beta1)
        second = self.second.index_select(0, rows).mul_(beta2)
        second.addcmul_(gradient, gradient, value=1 - beta2)
        self.first.index_copy_(0, rows, first)
        self.second.index_copy_(0, rows, second)
        root = second.sqrt_().mul_(float(self._skipped.h[step])).add_(self.eps)
        weight = self.table.weight.data
        values = weight.index_select(0, rows)
        if self.weight_decay:
            values.mul_(self._shrink(step))
        weight.index_copy_(
            0, rows, values.addcdiv_(first, root, value=-float(self._skipped.alpha[step]))
        )
        self.touched[rows] = step

    def _update_compiled(self, sums: CompiledSums, found: list[tuple[Read, Tensor]]) -> None:
        """`add_up` and `_update` in two passes over what was read."""
        step, count = self.steps, sums(found)
        self._skipped.reach(step)
        arrays, rates = self._arrays(), self._rates(step)
        sums.kernels.adam(count, sums.rows, sums.sources, *arrays, step, rates)

    def _rates(self, step: int) -> tuple[float, ...]:
        """What `row_kernels.adam` is to know of a step."""
        beta1, beta2 = self.betas
        alpha, h = self._skipped.alpha.item(step), self._skipped.h.item(step)
        shrink = self._shrink(step) if self.weight_decay else 1.0
        return alpha, 1 - beta1, beta2, 1 - beta2, h, self.eps, shrink

    def _shrink(self, step: int) -> float:
        """The factor of decoupled weight decay, 1 − lr·decay."""
        lr = float(self._skipped.alpha[step]) * (1 - self.betas[0] ** step)
        return 1 - lr * self.weight_decay

    @torch.no_grad()
    def catch_up(self, ids: Tensor) -> None:
        """Bring the rows of `ids` `[n]` to the current step, as if every step had moved them."""
        step = self.steps
        if self._sums:
            self._skipped.reach(step)
            tables = self._skipped
            self._sums.kernels.catch_up(
                ids.numpy(), *self._arrays(), step, tables.sums, tables.decay, self.betas[1],
                self.eps, FIRST_FLAT_STEP,
            )  # fmt: skip
        else:
            self._make_up(ids.unique(), step)

    def flush(self, *, chunk: int = 16_384) -> None:
        """Bring the whole table to the current step; before evaluation or export."""
        if self.dense:
            every = torch.arange(self.touched.shape[0], device=self.touched.device)
            for ids in every.split(chunk):
                self.catch_up(ids)

    def state(self) -> dict[str, Tensor]:
        """All state, not copied."""
        return {
            "steps": torch.tensor(self.steps),
            "first": self.first,
            "second": self.second,
            "touched": self.touched,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.steps = int(state["steps"])
        for name in ("first", "second", "touched"):
            getattr(self, name).copy_(state[name])
        self.forget()

    def _make_up(self, rows: Tensor, step: int) -> None:
        """`catch_up` of distinct rows, in torch."""
        touched = self.touched[rows]
        rows = rows[(touched > 0) & (touched < step)]  # never touched: m = 0, stays
        if rows.numel() == 0:
            return
        start = self.touched[rows].long()
        first, second = self.first[rows], self.second[rows]
        moments = self._moments(start, step)
        flat = start >= FIRST_FLAT_STEP
        total = torch.where(
            flat.unsqueeze(1),
            _around_the_mean(moments, second, self.eps),
            _in_powers_of_r(moments, second, self.eps),
        )
        small = self.eps * moments[-2] < SMALL * second.sqrt() * moments[-1]
        odd = (~flat & ~small.all(dim=1)).nonzero().squeeze(1)
        if odd.numel():
            total[odd] = self._term_by_term(start[odd], step, second[odd])
        self.table.weight.data[rows] -= first * total
        gap = (step - start).double().unsqueeze(1)
        self.first[rows] = first * (self.betas[0] ** gap).to(first.dtype)
        self.second[rows] = second * (self.betas[1] ** gap).to(first.dtype)
        self.touched[rows] = step

    def _moments(self, start: Tensor, step: int) -> dict[int, Tensor]:
        """M_k(s, step − s) of rows last touched at s = `start` `[n]`, by k: `[n, 1]` each."""
        self._skipped.reach(step)
        sums, decay = (
            torch.from_numpy(table).to(start.device)
            for table in (self._skipped.sums, self._skipped.decay)
        )
        gap = (step - start).clamp(max=len(decay) - 1)  # the last ones are as good as 0
        values = sums[start] - decay[gap] * sums[step]
        return {int(k): values[:, i : i + 1] for i, k in enumerate(POWERS)}

    def _term_by_term(self, start: Tensor, step: int, second: Tensor) -> Tensor:
        """Σ a_i / (b_i √v + ε) as written, `[n, d]`."""
        beta1, beta2 = self.betas
        alpha, h = (
            torch.from_numpy(table).to(start.device)
            for table in (self._skipped.alpha, self._skipped.h)
        )
        root, total = second.sqrt(), torch.zeros_like(second)
        for i in range(1, min(int((step - start).max()), len(self._skipped.decay)) + 1):
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
