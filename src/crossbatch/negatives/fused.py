"""`FusedLosses`: the sampled softmax with a hand-written gradient.

Why not plain autograd: it would save every logit, compute gradients for cached columns that nobody
needs, and build a `[B, N]` boolean mask that costs as much as the exponentials. Here the scores
turn, in place, into what the loss says of them,

    ∂loss_r/∂s'_rj = p_rj            p_rj = e^{s'_rj} / Z_r
    ∂loss_r/∂s'_rr = p_rr − 1        the row's own positive

and each side's gradient is one product of that block with the other side's vectors. So a bank costs
its two matrix products and its exponentials, and nothing is saved for it.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossbatch.kernels import HAS_NUMBA
from crossbatch.negatives.masks import MASKS, drop_matches_

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.negatives.candidates import Candidates

LOG2_E = math.log2(math.e)
CACHE_LINE = 16  # float32 values


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a softmax besides their vectors: N of them, in parts.

    Attributes:
        log_q: Of each part.
        own_log_q: `[B]` of the rows' own positives.
        row_keys: `[B]`; a column is no negative of the rows whose key it carries.
        column_keys: `[N]`.
        exclude: `[B, N]`, or None.
        own: Where the batch's own positives begin among the columns, in the order of the rows; None
            where they are not among them.
        push: Of each part.
    """

    log_q: tuple[Tensor, ...]
    own_log_q: Tensor
    row_keys: Tensor
    column_keys: Tensor
    exclude: Tensor | None
    own: int | None
    push: tuple[float, ...]

    @staticmethod
    def of(
        positives: Candidates, negatives: Candidates, mask: str, exclude: Tensor | None
    ) -> Columns:
        """What `sampled_softmax_loss` was given."""
        row_keys, column_keys = MASKS[mask](positives.item_ids, negatives)
        log_q = tuple(part.log_q.detach() for part in negatives.parts)
        own = own_place(positives, negatives)
        own_log_q = positives.log_q.detach()
        push = tuple(part.push for part in negatives.parts)
        return Columns(log_q, own_log_q, row_keys, column_keys, exclude, own, push)

    def own_place(self, block: Tensor) -> Tensor:
        """`[B]` view of the rows' own positives in a block: among the columns, or after them."""
        if self.own is None:
            return block[:, self.column_keys.shape[0]]
        return block.narrow(1, self.own, block.shape[0]).diagonal()

    def drop_(self, logits: Tensor, here: slice) -> None:
        """Set logits of the columns `here` to −inf where a column is no negative of the row."""
        drop_matches_(logits, self.row_keys, self.column_keys[here])
        if self.exclude is not None:
            logits.masked_fill_(self.exclude[:, here], float("-inf"))


class FusedLosses(torch.autograd.Function):
    """The losses of `row_losses` and their mean, with the same gradients at the least cost."""

    @staticmethod
    def run(
        queries: Tensor,
        positives: Candidates,
        negatives: Candidates,
        mask: str,
        exclude: Tensor | None,
        *,
        mean: bool = False,
    ) -> Tensor:
        """`[B]` losses or their mean; see `sampled_softmax_loss` for the arguments."""
        columns = Columns.of(positives, negatives, mask, exclude)
        own = positives.embeddings if columns.own is None else None
        losses: Tensor = FusedLosses.apply(  # type: ignore[no-untyped-call]
            columns, mean, queries, own, *live_vectors(negatives)
        )
        return losses

    @staticmethod
    def forward(
        ctx: Any,
        columns: Columns,
        mean: bool,
        queries: Tensor,
        own: Tensor | None,
        *vectors: Tensor,
    ) -> Tensor:
        """Scores, softmax, and the user side of the gradient."""
        with no_autocast(queries.device):
            u = as_type(queries, torch.promote_types(queries.dtype, torch.float32))
            parts = [as_type(part, u.dtype) for part in vectors]
            block, places = _scores(columns, u, parts)
            share = None
            if own is not None:
                own = as_type(own, u.dtype)
                share = columns.own_place(block).copy_(torch.linalg.vecdot(u, own))
            softmax = _softmax_compiled_ if _can_compile(u, columns) else _softmax_
            losses = softmax(columns, block)
            gradient = torch.zeros_like(u) if not parts else torch.mm(places[0], parts[0])
            for place, part in zip(places[1:], parts[1:], strict=True):
                gradient.addmm_(place, part)
            if own is not None and share is not None:
                gradient.addcmul_(own, share.unsqueeze(1))
        ctx.push = columns.push
        ctx.scale = 1 / len(losses) if mean else 1.0
        ctx.live = [number for number in range(len(parts)) if ctx.needs_input_grad[4 + number]]
        kept = [_kept(places[number], block) for number in ctx.live]
        ctx.save_for_backward(u, gradient, None if share is None else share.clone(), *kept)
        return losses.mean() if mean else losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the queries, the positives and the columns that carry one."""
        refuse_second_derivative()
        u, gradient, share, *kept = ctx.saved_tensors
        grad = grad.unsqueeze(1) if grad.dim() else grad * ctx.scale
        grads: list[Tensor | None] = [None] * (len(ctx.needs_input_grad) - 4)
        with no_autocast(u.device):
            pull = u * grad  # [B, d]
            for number, block in zip(ctx.live, kept, strict=True):
                push = ctx.push[number]
                grads[number] = block.t() @ (pull if push == 1 else pull * push)
            grad_own = None if share is None else pull * share.unsqueeze(1)
            return None, None, gradient * grad, grad_own, *grads


def own_place(positives: Candidates, negatives: Candidates) -> int | None:
    """Where the positives begin among the negatives, as they stand; None if they are not there."""
    start = 0
    for part in negatives.parts:
        if part is positives and not part.cached:
            return start
        start += part.item_ids.shape[0]
    return None


def live_vectors(negatives: Candidates) -> list[Tensor]:
    """The vectors of each part; those of cached parts as constants."""
    return [
        part.embeddings.detach() if part.cached else part.embeddings for part in negatives.parts
    ]


def _scores(
    columns: Columns, u: Tensor, parts: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A block that holds `[B, N]` scores and room for the own ones, and its view of each part."""
    sizes = [part.shape[0] for part in parts]
    width = sum(sizes) + (columns.own is None)
    # Rows start at full cache lines, or the product would take an eighth longer.
    block = u.new_empty(u.shape[0], -(-width // CACHE_LINE) * CACHE_LINE)
    places = block.narrow(1, 0, sum(sizes)).split(sizes, dim=1) if sizes else ()
    for place, part in zip(places, parts, strict=True):
        torch.mm(u, part.t(), out=place)
    return block, places


def _softmax_(columns: Columns, block: Tensor) -> Tensor:
    """Turn scores into the gradients of the losses, in place; return the losses `[B]`."""
    num_columns = columns.column_keys.shape[0]
    own = columns.own_place(block)
    own_logit = own - columns.own_log_q
    logits = block.narrow(1, 0, num_columns)
    logits -= torch.cat([as_type(log_q, block.dtype) for log_q in columns.log_q])
    columns.drop_(logits, slice(None))
    own.copy_(own_logit)
    block = block.narrow(1, 0, num_columns + (columns.own is None))
    peak = block.amax(dim=1, keepdim=True)
    total = exp_(block.sub_(peak)).sum(dim=1, keepdim=True)
    block /= total
    # A sum of small terms: a small loss survives large logits, and so does p − 1 = e^{−loss} − 1.
    losses: Tensor = total.squeeze(1).log() + (peak.squeeze(1) - own_logit)
    own.copy_(torch.expm1(-losses))
    return losses


def _softmax_compiled_(columns: Columns, block: Tensor) -> Tensor:
    """`_softmax_` in one pass over each row."""
    from crossbatch.negatives.softmax_kernel import NOTHING, softmax_rows

    log_q = columns.log_q[0] if len(columns.log_q) == 1 else torch.cat(columns.log_q)
    losses = torch.empty_like(columns.own_log_q)
    softmax_rows(
        block.numpy(),
        log_q.numpy(),
        columns.row_keys.numpy(),
        columns.column_keys.numpy(),
        NOTHING if columns.exclude is None else columns.exclude.numpy(),
        columns.own_log_q.numpy(),
        -1 if columns.own is None else columns.own,
        1.0,
        losses.numpy(),
    )
    return losses


def _can_compile(u: Tensor, columns: Columns) -> bool:
    if not HAS_NUMBA or u.device.type != "cpu":
        return False
    return all(x.dtype == torch.float32 for x in (u, columns.own_log_q, *columns.log_q))


def _kept(place: Tensor, block: Tensor) -> Tensor:
    # A narrow view would keep the whole block in memory until the backward pass.
    return place if 2 * place.shape[1] > block.shape[1] else place.clone()


def as_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` as `dtype`; asking is cheaper than a conversion that finds nothing to do."""
    return x if x.dtype == dtype else x.to(dtype)


def exp_(x: Tensor) -> Tensor:
    """e^x in place. On a CPU 2^x takes half the time."""
    return x.mul_(LOG2_E).exp2_() if x.device.type == "cpu" else x.exp_()


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Full precision inside. Entering torch.autocast costs as much as a small matrix product."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def refuse_second_derivative() -> None:
    """Raise `RuntimeError` in a backward pass that is itself to be differentiated."""
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(
            "sampled_softmax_loss has no second derivative; leave create_graph=False, or build "
            "the loss from crossbatch.negatives.loss.row_losses"
        )
