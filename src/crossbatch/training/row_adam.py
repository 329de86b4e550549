"""`RowAdam`: Adam over embedding tables at the cost of the rows that a batch reads.

`torch.optim.Adam` moves *every* row at *every* step, because moments decay and a decayed moment
still moves its weight. Walking 314 k rows per step costs a hundred times the step itself. A row
without gradient moves deterministically, though, so its skipped steps can be made up for when it is
next read. With m, v its moments at step s and j steps skipped,

    w ← w − m/√v · Σ_{i=1..j} a_i / (b_i + ε/√v)      a_i = lr_{s+i} β1^i / (1 − β1^{s+i})
    m ← β1^j m,  v ← β2^j v                           b_i = β2^{i/2} / √(1 − β2^{s+i})

The sum is the same for all rows last touched at s but for ε/√v. As b_i hardly changes while β1^i
dies out, an expansion around its weighted mean b̄ (first order vanishes, third is kept) gives the
sum to float rounding for any ε/√v:

    Σ a_i/(b_i + r) ≈ A/(b̄ + r) + S2/(b̄ + r)³ − S3/(b̄ + r)⁴      S_k = Σ a_i (b_i − b̄)^k

In the first steps of training b_i does change, and those few sums are done term by term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.models import EmbeddingTable

# β1^i below this leaves nothing that float32 could see.
NEGLIGIBLE = 1e-9
# From this step on the expansion is exact to float rounding.
FIRST_FLAT_STEP = 500


class RowAdam(nn.Module):
    """Adam for one table; its state (moments, last step of each row) is in buffers.

    Args:
        table: The table to look after. With `semantics="dense"` its `before_read` hook is taken.
        rate: Learning rates `[*]` of steps `[*]` (floating point, counted from 1).
        semantics: `"dense"` for the trajectory of `torch.optim.Adam`; `"lazy"` moves only rows that
            got a gradient (as `torch.optim.SparseAdam`), so that rare items keep still.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay of the rows that got a gradient; others are left alone.
    """

    first: Tensor  # m, [R, d]
    second: Tensor  # v, [R, d]
    touched: Tensor  # [R] last step whose update a row contains; 0 for never
    step_count: Tensor

    def __init__(
        self,
        table: EmbeddingTable,
        rate: Callable[[Tensor], Tensor],
        *,
        semantics: str = "dense",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        if semantics not in ("dense", "lazy"):
            raise ValueError(f"semantics must be 'dense' or 'lazy', got {semantics!r}")
        # In a tuple: the table's parameters belong to the model, not to this module's state.
        self._table = (table,)
        self.rate = rate
        self.dense = semantics == "dense"
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        weight = table.weight.detach()
        self.register_buffer("first", torch.zeros_like(weight))
        self.register_buffer("second", torch.zeros_like(weight))
        self.register_buffer(
            "touched", torch.zeros(weight.shape[0], dtype=torch.int32, device=weight.device)
        )
        self.register_buffer("step_count", torch.zeros((), dtype=torch.int64))
        if self.dense:
            table.before_read = self.catch_up

    @property
    def table(self) -> EmbeddingTable:
        """The table that this optimiser looks after."""
        return self._table[0]

    @torch.no_grad()
    def step(self) -> None:
        """Apply the table's gradient to the rows it covers."""
        self.step_count += 1
        gradient = self.table.weight.grad
        if gradient is None:
            return
        if not gradient.is_sparse:
            gradient = gradient.to_sparse(1)
        gradient = gradient.coalesce()
        self._update(gradient.indices()[0], gradient.values())
        self.table.weight.grad = None

    def _update(self, rows: Tensor, gradient: Tensor) -> None:
        """One Adam step of `rows` `[n]` by their gradients `[n, d]`."""
        beta1, beta2 = self.betas
        step = int(self.step_count)
        lr = float(self.rate(torch.tensor(float(step), dtype=torch.float64)))
        first = self.first[rows].lerp_(gradient, 1 - beta1)
        second = self.second[rows].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        self.first[rows] = first
        self.second[rows] = second
        root = second.sqrt_().div_((1 - beta2**step) ** 0.5).add_(self.eps)
        weight = self.table.weight.data
        values = weight[rows]
        if self.weight_decay:
            values.mul_(1 - lr * self.weight_decay)
        weight[rows] = values.addcdiv_(first, root, value=-lr / (1 - beta1**step))
        self.touched[rows] = step

    @torch.no_grad()
    def catch_up(self, ids: Tensor) -> None:
        """Bring the rows of `ids` to the current step, as if every step had moved them."""
        rows = ids.flatten().unique()
        self._make_up(rows[self._is_behind(rows)])

    @torch.no_grad()
    def flush(self, *, chunk: int = 16_384) -> None:
        """Bring the whole table to the current step; before evaluation or export."""
        if not self.dense:
            return
        behind = self._is_behind(slice(None)).nonzero().squeeze(1)
        for rows in behind.split(chunk):
            self._make_up(rows)

    def _is_behind(self, rows: Tensor | slice) -> Tensor:
        touched = self.touched[rows]
        return (touched > 0) & (touched < int(self.step_count))  # never touched: m = 0, stays

    def _make_up(self, rows: Tensor) -> None:
        if rows.numel() == 0:
            return
        start = self.touched[rows].double()
        gap = int(self.step_count) - start
        first, second = self.first[rows], self.second[rows]
        flat = start >= FIRST_FLAT_STEP
        move = torch.empty_like(first)
        for chosen, total in ((flat, self._expanded), (~flat, self._term_by_term)):
            if bool(chosen.any()):
                move[chosen] = total(start[chosen], gap[chosen], first[chosen], second[chosen])
        self.table.weight.data[rows] -= move
        self.first[rows] = first * (self.betas[0] ** gap).float().unsqueeze(1)
        self.second[rows] = second * (self.betas[1] ** gap).float().unsqueeze(1)
        self.touched[rows] = int(self.step_count)

    def _expanded(self, start: Tensor, gap: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """The sum by its expansion; float32 `[n, J]` tables are all it costs."""
        i, _, a = self._weights(start, gap)
        # b_i = 1/√(β2^{-i} − β2^s): the powers of i are shared by all rows, s is one per row.
        growth = (self.betas[1] ** -i.double()).float()
        b = torch.rsqrt(growth - (self.betas[1] ** start).float().unsqueeze(1))  # [n, J]
        total = a.sum(dim=1, keepdim=True)  # A
        centre = (a * b).sum(dim=1, keepdim=True) / total.clamp(min=1e-30)  # b̄
        offset = b.sub_(centre)
        weighted = a.mul_(offset).mul_(offset)
        square = weighted.sum(dim=1, keepdim=True)  # S2
        cube = weighted.mul_(offset).sum(dim=1, keepdim=True)  # S3
        root = second.sqrt()
        # Multiplied through by √v, so that v = 0 needs no case of its own.
        x = root / (centre * root + self.eps)  # 1 / (b̄ + ε/√v), [n, d]
        series = x * (total + x * x * (square - cube * x))
        return first * series / root.clamp(min=1e-30)

    def _term_by_term(self, start: Tensor, gap: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """The sum as written, while bias corrections still change from step to step."""
        beta1, beta2 = self.betas
        i, k, a = self._weights(start, gap)
        a = (a / (1 - beta1 ** k.double())).float()
        b = (beta2 ** i.double() / (1 - beta2 ** k.double())).sqrt().float()
        root = second.sqrt()
        move = torch.zeros_like(first)
        for j in range(a.shape[1]):
            move += a[:, j : j + 1] * first / (root * b[:, j : j + 1] + self.eps)
        return move

    def _weights(self, start: Tensor, gap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Offsets i `[J]`, steps k = s + i `[n, J]` and lr_k β1^i `[n, J]`, 0 beyond the gap."""
        longest = min(int(gap.max()), _horizon(*self.betas))
        i = torch.arange(1, longest + 1, dtype=torch.float32, device=start.device)
        k = start.float().unsqueeze(1) + i
        a = self.rate(k) * (self.betas[0] ** i)
        if int(gap.min()) < longest:
            a.masked_fill_(i > gap.float().unsqueeze(1), 0.0)
        return i, k, a


def _horizon(beta1: float, beta2: float) -> int:
    """Number of skipped steps after which the moment's pull is below `NEGLIGIBLE`."""
    ratio = beta1 / beta2**0.5
    horizon = 1
    while ratio**horizon > NEGLIGIBLE * (1 - ratio):
        horizon += 1
    return horizon
