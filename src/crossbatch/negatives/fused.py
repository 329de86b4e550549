"""`FusedRowLosses`: the sampled softmax with a hand-written gradient, column block by column block.

Why not plain autograd: it would save every logit, compute gradients for cached columns that nobody
needs, and build a `[B, N]` boolean mask that costs as much as the exponentials. Here one pass over
the columns keeps a running maximum m, sum s and weighted mean of the columns (as in streaming
softmax), which already *is* the user-side gradient:

    ∂loss_r/∂u_r = Σ_j p_rj v_j − v_r          p_rj = e^{s'_rj} / Z_r, own positive included
    ∂loss/∂v_j   = Σ_r g_r p_rj u_r            only for columns that carry gradient

So a bank costs its two matrix products and its exponentials, and nothing is saved for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from crossbatch.negatives.masks import MASKS

if TYPE_CHECKING:
    from crossbatch.negatives.candidates import Candidates


@dataclass(frozen=True, slots=True)
class _Columns:
    """What the kernel needs to know of the columns besides their vectors."""

    own_ids: Tensor  # [B]
    parts: tuple[Candidates, ...]
    mask: str
    exclude: Tensor | None  # [B, N]
    chunk_size: int | None

    def chunks(self, part: int) -> list[slice]:
        num_columns = len(self.parts[part])
        size = self.chunk_size or max(1, num_columns)
        return [slice(start, start + size) for start in range(0, num_columns, size)]

    def logits(self, queries: Tensor, part: int, chunk: slice) -> Tensor:
        """`[B, n]` masked, corrected logits of one block of columns."""
        columns = self.parts[part]
        vectors = columns.embeddings.detach()[chunk].to(queries.dtype)
        correction = columns.log_q[chunk].to(queries.dtype)
        logits = torch.addmm(correction, queries, vectors.T, beta=-1)
        self._mask_(logits, part, chunk)
        if self.exclude is not None:
            start = sum(len(earlier) for earlier in self.parts[:part])
            block = self.exclude[:, start : start + len(columns)][:, chunk]
            logits.masked_fill_(block, float("-inf"))
        return logits

    def _mask_(self, logits: Tensor, part: int, chunk: slice) -> None:
        columns = self.parts[part]
        if self.mask == "none" or logits.device.type != "cpu":
            dropped = MASKS[self.mask](self.own_ids, columns)
            if dropped is not None:
                logits.masked_fill_(dropped[:, chunk], float("-inf"))
        elif self.mask == "both" or not columns.cached:
            # Few columns match any row: find those by a sorted search, compare only them.
            column_ids = columns.item_ids[chunk]
            sorted_ids = self.own_ids.sort().values
            nearest = torch.searchsorted(sorted_ids, column_ids).clamp_(max=len(sorted_ids) - 1)
            matched = (sorted_ids[nearest] == column_ids).nonzero().squeeze(1)
            rows, hits = (self.own_ids.unsqueeze(1) == column_ids[matched]).nonzero(as_tuple=True)
            logits[rows, matched[hits]] = float("-inf")


class FusedRowLosses(torch.autograd.Function):
    """`[B]` losses of `row_losses`, with the same gradients at the least cost."""

    @staticmethod
    def run(
        queries: Tensor,
        positives: Candidates,
        negatives: Candidates,
        mask: str,
        exclude: Tensor | None,
        chunk_size: int | None,
    ) -> Tensor:
        """Apply the function to candidates; see `sampled_softmax_loss` for the arguments."""
        columns = _Columns(positives.item_ids, negatives.parts, mask, exclude, chunk_size)
        vectors = [
            part.embeddings.detach() if part.cached else part.embeddings for part in negatives.parts
        ]
        rows: Tensor = FusedRowLosses.apply(  # type: ignore[no-untyped-call]
            columns, queries, positives.log_q, positives.embeddings, *vectors
        )
        return rows

    @staticmethod
    def forward(
        ctx: Any,
        columns: _Columns,
        queries: Tensor,
        own_log_q: Tensor,
        own_vectors: Tensor,
        *vectors: Tensor,
    ) -> Tensor:
        """One streaming pass over the column blocks."""
        ctx.dtypes = [tensor.dtype for tensor in (queries, own_vectors, *vectors)]
        dtype = torch.promote_types(queries.dtype, torch.float32)
        with torch.autocast(queries.device.type, enabled=False):
            u, own = queries.to(dtype), own_vectors.to(dtype)
            own_logit = (u * own).sum(dim=1) - own_log_q.to(dtype)  # [B]
            peak, total = own_logit, torch.ones_like(own_logit)  # m and s, [B]
            mean = own.clone()  # Σ_j e^{s'_j − m} v_j, [B, d]
            kept: list[tuple[int, Tensor, Tensor]] = []
            for part, vector in enumerate(vectors):
                for chunk in columns.chunks(part):
                    logits = columns.logits(u, part, chunk)
                    new_peak = torch.maximum(peak, logits.amax(dim=1))
                    shrink = (peak - new_peak).exp_()
                    weights = logits.sub_(new_peak.unsqueeze(1)).exp_()  # [B, n]
                    total = total * shrink + weights.sum(dim=1)
                    mean = torch.addmm(mean * shrink.unsqueeze(1), weights, vector[chunk].to(dtype))
                    peak = new_peak
                    if columns.chunk_size is None and ctx.needs_input_grad[4 + part]:
                        kept.append((part, weights, new_peak))
            log_total = total.log() + peak  # log Z, [B]
            user_gradient = mean / total.unsqueeze(1) - own
        ctx.columns = columns
        ctx.kept_parts = [part for part, _, _ in kept]
        ctx.save_for_backward(
            u, own_logit, log_total, user_gradient, *[t for _, w, p in kept for t in (w, p)]
        )
        return log_total - own_logit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the queries, the positives and the columns that carry one."""
        u, own_logit, log_total, user_gradient, *kept = ctx.saved_tensors
        weights = dict(zip(ctx.kept_parts, zip(kept[::2], kept[1::2], strict=True), strict=True))
        query_dtype, own_dtype, *dtypes = ctx.dtypes
        with torch.autocast(u.device.type, enabled=False):
            grad_u = grad.unsqueeze(1) * user_gradient
            own_weight = grad * torch.expm1(own_logit - log_total)  # g (p_own − 1)
            grad_own = own_weight.unsqueeze(1) * u
            grads: list[Tensor | None] = []
            for part, dtype in enumerate(dtypes):
                if not ctx.needs_input_grad[4 + part]:
                    grads.append(None)
                elif part in weights:
                    block, peak = weights[part]
                    scaled = u * (grad * (peak - log_total).exp()).unsqueeze(1)
                    grads.append((block.T @ scaled).to(dtype))
                else:
                    grads.append(_recomputed(ctx.columns, part, u, grad, log_total).to(dtype))
        return None, grad_u.to(query_dtype), None, grad_own.to(own_dtype), *grads


def _recomputed(columns: _Columns, part: int, u: Tensor, grad: Tensor, log_total: Tensor) -> Tensor:
    """`[n, d]` gradient of a part's vectors without having kept its probabilities."""
    blocks = []
    for chunk in columns.chunks(part):
        probability = (columns.logits(u, part, chunk) - log_total.unsqueeze(1)).exp_()
        blocks.append(probability.T @ (u * grad.unsqueeze(1)))
    return torch.cat(blocks) if blocks else u.new_zeros(0, u.shape[1])
