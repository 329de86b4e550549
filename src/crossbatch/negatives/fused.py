"""`FusedRowLosses`: the sampled softmax with a hand-written gradient, span of columns by span.

Why not plain autograd: it would save every logit, compute gradients for cached columns that nobody
needs, and build a `[B, N]` boolean mask that costs as much as the exponentials. Here one pass over
the columns keeps a running maximum m, sum s and weighted sum of the columns (as in streaming
softmax), which already *is* the user-side gradient:

    ∂loss_r/∂u_r = Σ_j p_rj v_j − v_r          p_rj = e^{s'_rj} / Z_r, own positive included
    ∂loss/∂v_j   = Σ_r g_r p_rj u_r            only for columns that carry gradient

So a bank costs its two matrix products and its exponentials, and nothing is saved for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossbatch.negatives.masks import MASKS, drop_matches_

if TYPE_CHECKING:
    from crossbatch.negatives.candidates import Candidates

LOG2_E = math.log2(math.e)
HAS_NUMBA = find_spec("numba") is not None

Vectors = Sequence[Tensor] | Mapping[int, Tensor]  # by number of the part
Pieces = list[tuple[int, slice, slice]]  # number of the part, its rows, their place in the span


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns besides their vectors: N of them, in parts, worked through span by span."""

    log_q: tuple[Tensor, ...]  # of each part
    row_keys: Tensor  # [B]
    column_keys: Tensor  # [N]
    exclude: Tensor | None  # [B, N]
    chunk_size: int | None

    @property
    def bounds(self) -> list[range]:
        """The columns of each part."""
        stops = accumulate((part.shape[0] for part in self.log_q), initial=0)
        return [range(start, stop) for start, stop in pairwise(stops)]

    def spans(self, columns: range) -> list[range]:
        """`columns` at once, or `chunk_size` at a time."""
        size = self.chunk_size or max(1, len(columns))
        return [columns[start : start + size] for start in range(0, len(columns), size)]

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
            correction, block = as_type(self.log_q[part][rows], u), as_type(vectors[part][rows], u)
            torch.addmm(correction, u, block.T, beta=-1, out=logits[:, place])
        self.drop_(logits, slice(span.start, span.stop))
        return logits

    def drop_(self, logits: Tensor, here: slice) -> None:
        """Set logits of the columns `here` to −inf where a column is no negative of the row."""
        drop_matches_(logits, self.row_keys, self.column_keys[here])
        if self.exclude is not None:
            logits.masked_fill_(self.exclude[:, here], float("-inf"))


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
        row_keys, column_keys = MASKS[mask](positives.item_ids, negatives)
        log_q = tuple(part.log_q.detach() for part in negatives.parts)
        columns = _Columns(log_q, row_keys, column_keys, exclude, chunk_size)
        vectors = [
            part.embeddings.detach() if part.cached else part.embeddings for part in negatives.parts
        ]
        rows: Tensor = FusedRowLosses.apply(  # type: ignore[no-untyped-call]
            columns, queries, positives.log_q.detach(), positives.embeddings, *vectors
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
        """One streaming pass over the columns."""
        dtype = torch.promote_types(queries.dtype, torch.float32)
        ctx.columns = columns
        ctx.live = [part for part in range(len(vectors)) if ctx.needs_input_grad[4 + part]]
        with no_autocast(queries.device):
            u = queries.to(dtype)
            own = as_type(own_vectors, u)
            own_logit = (u * own).sum(dim=1).sub_(own_log_q)  # [B]
            if columns.chunk_size is None:
                losses, mean, kept = _at_once(columns, ctx.live, u, own, own_logit, vectors)
            else:
                losses, mean = _in_spans(columns, u, own, own_logit, vectors)
                kept = [vectors[part] for part in ctx.live]
            ctx.save_for_backward(u, losses, losses + own_logit, mean.sub_(own), *kept)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the queries, the positives and the columns that carry one."""
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "sampled_softmax_loss has no second derivative; leave create_graph=False, or build "
                "the loss from crossbatch.negatives.loss.row_losses"
            )
        u, losses, log_total, user_gradient, *kept = ctx.saved_tensors
        columns: _Columns = ctx.columns
        grads: list[Tensor | None] = [None] * len(columns.log_q)
        with no_autocast(u.device):
            pull = u * grad.unsqueeze(1)  # [B, d]
            for part, saved in zip(ctx.live, kept, strict=True):
                if columns.chunk_size is None:
                    grads[part] = saved.T @ pull
                else:
                    grads[part] = _recomputed(columns, part, saved, u, log_total, pull)
            grad_own = pull * torch.expm1(-losses).unsqueeze(1)  # p_own − 1 = e^{−loss} − 1
            return None, grad.unsqueeze(1) * user_gradient, None, grad_own, *grads


def _at_once(
    columns: _Columns,
    live: list[int],
    u: Tensor,
    own: Tensor,
    own_logit: Tensor,
    vectors: Vectors,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Losses `[B]`, mean column `[B, d]` under p, and p `[B, n]` of the live parts' columns."""
    num_columns = columns.column_keys.shape[0]
    sizes = [log_q.shape[0] for log_q in columns.log_q]
    # The own positive is the last column, so that no operation is spent on it alone; rows start at
    # full cache lines, or the product would take an eighth longer.
    block = u.new_empty(u.shape[0], -(-(num_columns + 1) // 16) * 16)
    places = block.split([*sizes, 1, block.shape[1] - num_columns - 1], dim=1)
    blocks = [as_type(vectors[part], u) for part in range(len(columns.log_q))]
    for place, vectors_here in zip(places, blocks, strict=False):
        torch.mm(u, vectors_here.t(), out=place)
    softmax = _softmax_compiled_ if _can_compile(u, columns) else _softmax_
    losses = softmax(columns, block, own_logit)
    mean = own * places[-2]
    for place, vectors_here in zip(places, blocks, strict=False):
        mean.addmm_(place, vectors_here)
    kept = (places[part] for part in live)
    # A narrow view would keep the whole block in memory until the backward pass.
    return losses, mean, [p if 2 * p.shape[1] > num_columns else p.clone() for p in kept]


def _softmax_(columns: _Columns, block: Tensor, own_logit: Tensor) -> Tensor:
    """Turn scores `[B, N]` and a free column into probabilities, in place; return losses `[B]`."""
    num_columns = columns.column_keys.shape[0]
    block = block.narrow(1, 0, num_columns + 1)
    logits = block.narrow(1, 0, num_columns)
    logits -= torch.cat([as_type(log_q, block) for log_q in columns.log_q])
    columns.drop_(logits, slice(None))
    block[:, -1] = own_logit
    peak = block.amax(dim=1, keepdim=True)
    total = exp_(block.sub_(peak)).sum(dim=1, keepdim=True)
    block /= total
    losses: Tensor = total.squeeze(1).log() + (peak.squeeze(1) - own_logit)
    return losses  # a sum of small terms: a small loss survives large logits


def _softmax_compiled_(columns: _Columns, block: Tensor, own_logit: Tensor) -> Tensor:
    """`_softmax_` in one pass over each row."""
    from crossbatch.negatives.softmax_kernel import softmax_rows

    if columns.exclude is not None:
        block.narrow(1, 0, columns.exclude.shape[1]).masked_fill_(columns.exclude, float("-inf"))
    log_q = columns.log_q[0] if len(columns.log_q) == 1 else torch.cat(columns.log_q)
    losses = torch.empty_like(own_logit)
    softmax_rows(
        block.numpy(),
        log_q.numpy(),
        columns.row_keys.numpy(),
        columns.column_keys.numpy(),
        own_logit.numpy(),
        losses.numpy(),
    )
    return losses


def _can_compile(u: Tensor, columns: _Columns) -> bool:
    float32 = all(part.dtype == torch.float32 for part in (u, *columns.log_q))
    return HAS_NUMBA and u.device.type == "cpu" and float32


def _in_spans(
    columns: _Columns, u: Tensor, own: Tensor, own_logit: Tensor, vectors: Vectors
) -> tuple[Tensor, Tensor]:
    """Losses and mean as `_at_once` has them, in memory of one span."""
    peak, total, mean = own_logit, torch.ones_like(own_logit), own.clone()
    for span in columns.spans(range(columns.column_keys.shape[0])):
        pieces = columns.pieces(span)
        logits = columns.logits(u, vectors, span, pieces)
        new_peak = torch.maximum(peak, logits.amax(dim=1))
        shrink = (peak - new_peak).exp_()
        weights = exp_(logits.sub_(new_peak.unsqueeze(1)))  # [B, n]
        total = total * shrink + weights.sum(dim=1)
        mean *= shrink.unsqueeze(1)
        for part, rows, place in pieces:
            mean.addmm_(weights[:, place], as_type(vectors[part][rows], u))
        peak = new_peak
    return total.log() + (peak - own_logit), mean / total.unsqueeze(1)


def as_type(x: Tensor, like: Tensor) -> Tensor:
    """`x` in the type of `like`; asking is cheaper than a conversion that finds nothing to do."""
    return x if x.dtype == like.dtype else x.to(like.dtype)


def exp_(x: Tensor) -> Tensor:
    """e^x in place. On a CPU 2^x takes half the time."""
    return x.mul_(LOG2_E).exp2_() if x.device.type == "cpu" else x.exp_()


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Full precision inside. Entering torch.autocast costs as much as a small matrix product."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _recomputed(
    columns: _Columns, part: int, vectors: Tensor, u: Tensor, log_total: Tensor, pull: Tensor
) -> Tensor:
    """`[n, d]` gradient of a part's vectors without having kept its probabilities."""
    gradient = u.new_empty(vectors.shape)
    for span in columns.spans(columns.bounds[part]):
        pieces = columns.pieces(span)
        logits = columns.logits(u, {part: vectors}, span, pieces)
        ((_, rows, _),) = pieces
        gradient[rows] = exp_(logits.sub_(log_total.unsqueeze(1))).T @ pull
    return gradient
