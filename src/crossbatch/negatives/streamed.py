"""`StreamedLosses`: the sampled softmax in memory of one span of columns, however many there are.

One pass over the columns keeps a running maximum m, sum s and weighted sum of the columns (as in
streaming softmax), which already *is* the user-side gradient; probabilities are computed again in
the backward pass for the columns that carry gradient:

    ∂loss_r/∂u_r = Σ_j p_rj v_j − v_r          p_rj = e^{s'_rj} / Z_r, own positive included
    ∂loss/∂v_j   = Σ_r g_r p_rj u_r
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossbatch.negatives.fused import (
    Columns,
    as_type,
    exp_,
    live_vectors,
    no_autocast,
    refuse_second_derivative,
)

if TYPE_CHECKING:
    from crossbatch.negatives.candidates import Candidates

Vectors = Sequence[Tensor] | Mapping[int, Tensor]  # by number of the part
Pieces = list[tuple[int, slice, slice]]  # number of the part, its rows, their place in the span


@dataclass(frozen=True, slots=True)
class _Spans:
    """Columns worked through `size` at a time."""

    columns: Columns
    size: int

    @property
    def bounds(self) -> list[range]:
        """The columns of each part."""
        stops = accumulate((part.shape[0] for part in self.columns.log_q), initial=0)
        return [range(start, stop) for start, stop in pairwise(stops)]

    def of(self, columns: range) -> list[range]:
        """`columns`, `size` at a time."""
        return [columns[start : start + self.size] for start in range(0, len(columns), self.size)]

    def pieces(self, span: range) -> Pieces:
        """The parts that a span touches."""
        found = []
        for part, own in enumerate(self.bounds):
            low, high = max(span.start, own.start), min(span.stop, own.stop)
            if low < high:
                rows = slice(low - own.start, high - own.start)
                found.append((part, rows, slice(low - span.start, high - span.start)))
        return found

    def logits(self, u: Tensor, vectors: Vectors, span: range, pieces: Pieces) -> Tensor:
        """`[B, n]` corrected logits of a span; −inf where a column is no negative of the row."""
        logits = u.new_empty(u.shape[0], len(span))
        for part, rows, place in pieces:
            correction = as_type(self.columns.log_q[part][rows], u.dtype)
            block = as_type(vectors[part][rows], u.dtype)
            torch.addmm(correction, u, block.T, beta=-1, out=logits[:, place])
        self.columns.drop_(logits, slice(span.start, span.stop))
        return logits


class StreamedLosses(torch.autograd.Function):
    """`[B]` losses of `row_losses`, with the same gradients, in memory of one span."""

    @staticmethod
    def run(
        queries: Tensor,
        positives: Candidates,
        negatives: Candidates,
        mask: str,
        exclude: Tensor | None,
        chunk_size: int,
    ) -> Tensor:
        """See `sampled_softmax_loss` for the arguments."""
        spans = _Spans(Columns.of(positives, negatives, mask, exclude), chunk_size)
        losses: Tensor = StreamedLosses.apply(  # type: ignore[no-untyped-call]
            spans, queries, positives.embeddings, *live_vectors(negatives)
        )
        return losses

    @staticmethod
    def forward(
        ctx: Any, spans: _Spans, queries: Tensor, own_vectors: Tensor, *vectors: Tensor
    ) -> Tensor:
        """One streaming pass over the columns."""
        ctx.spans = spans
        ctx.live = [part for part in range(len(vectors)) if ctx.needs_input_grad[3 + part]]
        with no_autocast(queries.device):
            u = as_type(queries, torch.promote_types(queries.dtype, torch.float32))
            own = as_type(own_vectors, u.dtype)
            own_logit = (u * own).sum(dim=1).sub_(spans.columns.own_log_q)  # [B]
            losses, mean = _streamed(spans, u, own, own_logit, vectors)
            kept = [vectors[part] for part in ctx.live]
            ctx.save_for_backward(u, losses, losses + own_logit, mean.sub_(own), *kept)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the queries, the positives and the columns that carry one."""
        refuse_second_derivative()
        u, losses, log_total, user_gradient, *kept = ctx.saved_tensors
        grads: list[Tensor | None] = [None] * len(ctx.spans.columns.log_q)
        with no_autocast(u.device):
            pull = u * grad.unsqueeze(1)  # [B, d]
            for part, vectors in zip(ctx.live, kept, strict=True):
                push = ctx.spans.columns.push[part]
                grads[part] = _recomputed(ctx.spans, part, vectors, u, log_total, pull * push)
            grad_own = pull * torch.expm1(-losses).unsqueeze(1)  # p_own − 1 = e^{−loss} − 1
            return None, grad.unsqueeze(1) * user_gradient, grad_own, *grads


def _streamed(
    spans: _Spans, u: Tensor, own: Tensor, own_logit: Tensor, vectors: Vectors
) -> tuple[Tensor, Tensor]:
    """Losses `[B]` and mean column `[B, d]` under p."""
    peak, total, mean = own_logit, torch.ones_like(own_logit), own.clone()
    for span in spans.of(range(spans.columns.column_keys.shape[0])):
        pieces = spans.pieces(span)
        logits = spans.logits(u, vectors, span, pieces)
        new_peak = torch.maximum(peak, logits.amax(dim=1))
        shrink = (peak - new_peak).exp_()
        weights = exp_(logits.sub_(new_peak.unsqueeze(1)))  # [B, n]
        total = total * shrink + weights.sum(dim=1)
        mean *= shrink.unsqueeze(1)
        for part, rows, place in pieces:
            mean.addmm_(weights[:, place], as_type(vectors[part][rows], u.dtype))
        peak = new_peak
    return total.log() + (peak - own_logit), mean / total.unsqueeze(1)


def _recomputed(
    spans: _Spans, part: int, vectors: Tensor, u: Tensor, log_total: Tensor, pull: Tensor
) -> Tensor:
    """`[n, d]` gradient of a part's vectors without having kept its probabilities."""
    gradient = u.new_empty(vectors.shape)
    for span in spans.of(spans.bounds[part]):
        pieces = spans.pieces(span)
        logits = spans.logits(u, {part: vectors}, span, pieces)
        ((_, rows, _),) = pieces
        gradient[rows] = exp_(logits.sub_(log_total.unsqueeze(1))).T @ pull
    return gradient
