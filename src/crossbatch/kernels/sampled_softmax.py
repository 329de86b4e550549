"""Sampled softmax: the losses of B rows over N shared columns, and their gradients.

A row is one query vector, or a group of weighted ones that score a column together. With scores
s_kj = a_k + u_k·v_j of query k of a row (a is its log-weight), corrected logits
s'_kj = s_kj − log q_j, and Z the sum of their exponentials over the row's queries, its own positive
and its negatives,

    loss = log Z − log Σ_k e^{s'_ko}        ∂loss/∂s_kj = p_kj = e^{s'_kj} / Z
                                            ∂loss/∂s_ko = w_k (Σ_k p_ko − 1)

where o is the row's own positive and w_k = e^{s'_ko} / Σ_k e^{s'_ko} the share of query k in its
score: one query is the case w = 1.

Plain autograd would save every logit, compute gradients of cached columns that need none, and make
a `[B, N]` mask that costs as much as the exponentials. Here the scores of a block of rows turn, in
place, into the gradients above, and each side's gradient is one product of that block with the
other side's vectors. A bank costs two matrix products and its exponentials; nothing is saved.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    check_device,
    check_ids,
    check_shapes,
    refuse_second_derivative,
)
from crossbatch.kernels.ragged import check_stops, lengths
from crossbatch.kernels.softmax_blocks import (
    Columns,
    Gradients,
    Rows,
    as_type,
    logsumexp_by_row,
    row_of_query,
    softmax_blocks,
)
from crossbatch.kernels.softmax_streamed import with_streamed

if TYPE_CHECKING:
    from collections.abc import Sequence

CACHE_LINE = 16  # float32 values
MEMORY_PAGE = 1024  # float32 values
CACHED_SCORES = 1 << 18  # of a block of rows: they stay in a core's own cache between two passes
FEWEST_ROWS = 128  # of a block: with fewer, products would wait for the columns


def definition(
    columns: Columns,
    users: Tensor,
    own_vectors: Tensor,
    vectors: Sequence[Tensor],
    log_weights: Tensor | None = None,
    stops: Tensor | None = None,
) -> Tensor:
    """Losses `[B]` in plain autograd; arguments as in `sampled_softmax`."""
    dtype = torch.promote_types(users.dtype, torch.float32)
    row = row_of_query(columns, stops)  # [P]
    with torch.autocast(users.device.type, enabled=False):
        u = users.to(dtype)
        weights = u.new_zeros(len(u)) if log_weights is None else log_weights.to(dtype)
        own = (u * own_vectors.to(dtype)[row]).sum(dim=1) + weights - columns.own_log_q[row]  # [P]
        pushed = [_pushed(v, push) for v, push in zip(vectors, columns.push, strict=True)]
        logits = torch.cat([u @ v.to(dtype).T for v in pushed], dim=1) - columns.log_q
        dropped = columns.row_keys.unsqueeze(1) == columns.column_keys  # [B, N]
        if columns.exclude is not None:
            dropped = dropped | columns.exclude
        logits = (logits + weights.unsqueeze(1)).masked_fill(dropped[row], float("-inf"))
        of_query = torch.cat([own.unsqueeze(1), logits], dim=1).logsumexp(dim=1)
        return logsumexp_by_row(of_query, row, columns) - logsumexp_by_row(own, row, columns)


def _pushed(vectors: Tensor, push: float) -> Tensor:
    """The same vectors with their gradient multiplied by `push`."""
    return vectors if push == 1 else vectors.detach() + push * (vectors - vectors.detach())


def sampled_softmax(
    columns: Columns,
    users: Tensor,
    own_vectors: Tensor,
    vectors: Sequence[Tensor],
    log_weights: Tensor | None = None,
    stops: Tensor | None = None,
    *,
    mean: bool = False,
    block_rows: int | None = None,
) -> Tensor:
    """Losses `[B]`, or their mean.

    Args:
        columns: What is known of the columns besides their vectors.
        users: `[P, d]` queries, divided by the temperature; one of each row unless `stops` is
            given.
        own_vectors: `[B, d]` of the rows' own positives.
        vectors: `[n_i, d]` groups of columns, N in all.
        log_weights: `[P]` of the queries; 0 unless given.
        stops: `[B]` int64, where the queries of each row end; each row has one at least.
        mean: Whether to return the mean. Its gradients are computed along with it; those of single
            losses in the backward pass, once their weights are known.
        block_rows: Queries whose scores are in memory at a time, or those of one row if that has
            more; by default as many as the cache holds.
    """
    _check(columns, users, own_vectors, vectors, log_weights, stops)
    own = own_vectors if columns.own is None else None
    losses: Tensor = _SampledSoftmax.apply(  # type: ignore[no-untyped-call]
        columns, mean, block_rows, stops, users, own, log_weights, *vectors
    )
    return losses


def _check(
    columns: Columns,
    users: Tensor,
    own_vectors: Tensor,
    vectors: Sequence[Tensor],
    log_weights: Tensor | None,
    stops: Tensor | None,
) -> None:
    """Raise `ValueError` for shapes and types that compiled code must not be given."""
    P, N = users.shape[0], sum([v.shape[0] for v in vectors])
    B = P if stops is None else stops.shape[0]
    if columns.row_keys.shape != (B,) or columns.own_log_q.shape != (B,):
        raise ValueError(f"row_keys and own_log_q must have shape [{B}], one entry for each row")
    if columns.column_keys.shape != (N,) or columns.log_q.shape != (N,):
        raise ValueError(f"column_keys and log_q must have shape [{N}], one entry for each column")
    check_ids(row_keys=columns.row_keys, column_keys=columns.column_keys)
    exclude = columns.exclude
    if exclude is not None and (exclude.shape != (B, N) or exclude.dtype != torch.bool):
        raise ValueError(
            f"exclude must be bool of shape [{B}, {N}], got {exclude.dtype} {list(exclude.shape)}"
        )
    for tensor in (users, own_vectors, *vectors, columns.log_q, columns.own_log_q):
        if not tensor.is_floating_point():
            raise ValueError(f"vectors and log q must be floating point, got {tensor.dtype}")
    for tensor in (users, *vectors):
        if tensor.dim() != 2 or tensor.shape[1] != users.shape[1]:
            raise ValueError(
                f"users and vectors must be [n, d] with one d, got {list(users.shape)} and "
                f"{list(tensor.shape)}"
            )
    if columns.own is None:
        check_shapes(own_vectors=(own_vectors, (B, users.shape[-1])))
    described = (columns.log_q, columns.own_log_q, columns.row_keys, columns.column_keys, exclude)
    check_device(users, *described, own_vectors, *vectors, log_weights, stops)
    if columns.own is not None and not 0 <= columns.own <= N - B:
        raise ValueError(f"own must leave room for {B} of {N} columns, got {columns.own}")
    if log_weights is not None and log_weights.shape != (P,):
        raise ValueError(f"log_weights must have shape [{P}], got {list(log_weights.shape)}")
    if stops is not None:
        check_stops(stops, P)
        if bool((lengths(stops) < 1).any()):
            raise ValueError("stops must leave each row one query at least")


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        columns: Columns,
        mean: bool,
        block_rows: int | None,
        stops: Tensor | None,
        users: Tensor,
        own: Tensor | None,
        log_weights: Tensor | None,
        *vectors: Tensor,
    ) -> Tensor:
        ctx.columns, ctx.block_rows, ctx.stops = columns, block_rows, stops
        ctx.live, ctx.mean = ctx.needs_input_grad[7:], mean
        B = columns.row_keys.shape[0]
        scale = None
        if mean and any(ctx.needs_input_grad):
            scale = _constant(B, 1 / B, columns.own_log_q.dtype, users.device)
        with no_autocast(users.device):
            losses, gradients = _losses(ctx, scale, users, own, log_weights, *vectors)
        ctx.save_for_backward(*gradients if mean else (users, own, log_weights, *vectors))
        if not mean:
            return losses
        return losses.mean() if scale is None else losses.dot(as_type(scale, losses.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("sampled_softmax_loss")
        gradients: Any = ctx.saved_tensors
        if ctx.mean:
            factor = float(grad)
            if factor != 1:
                gradients = [None if each is None else each * factor for each in gradients]
        else:
            with no_autocast(gradients[0].device):
                _, gradients = _losses(ctx, grad, *gradients)
        return None, None, None, None, *gradients


def _losses(
    ctx: Any,
    scale: Tensor | None,
    users: Tensor,
    own: Tensor | None,
    log_weights: Tensor | None,
    *vectors: Tensor,
) -> tuple[Tensor, Sequence[Tensor | None]]:
    """Losses `[B]`, and gradients of users, own vectors, log-weights and live groups of columns.

    `ctx` has columns, stops, which groups of columns need a gradient, and the rows of a block;
    `scale` `[B]` are the weights of the losses, None for losses without gradients. Other arguments
    are those of `sampled_softmax`; `own` is None where the positives are among the columns.
    """
    columns: Columns = ctx.columns
    dtype = torch.promote_types(users.dtype, torch.float32)
    u, parts = as_type(users, dtype).contiguous(), [as_type(part, dtype) for part in vectors]
    P, B = u.shape[0], columns.row_keys.shape[0]
    own_rows = None  # [P, d] the own vector of each query's row
    if own is not None:
        own_rows = as_type(own, dtype)
        if ctx.stops is not None:
            own_rows = own_rows[row_of_query(columns, ctx.stops)]
    rows = Rows(
        u,
        own_rows,
        parts,
        _constant(P, 0.0, dtype, u.device) if log_weights is None else as_type(log_weights, dtype),
        _one_by_one(P, u.device) if ctx.stops is None else ctx.stops,
        _constant(B, 1.0, dtype, u.device) if scale is None else as_type(scale, dtype),
    )
    gradients = Gradients(rows, ctx.live, wanted=scale is not None)
    columns, rows, room = with_streamed(columns, rows, gradients, ctx.live)
    N = columns.column_keys.shape[0]
    # Rows begin at full cache lines, or the products would take an eighth longer.
    width = (N + (own is not None) + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE
    if width % MEMORY_PAGE == 0:  # rows a page apart would compete for the same places of the cache
        width += CACHE_LINE
    fitting = CACHED_SCORES // max(width, 1) // CACHE_LINE * CACHE_LINE
    size = ctx.block_rows or max(FEWEST_ROWS, fitting)
    rows_of_block = max(1, size * B // max(P, 1))
    losses = softmax_blocks(columns, rows, room, size=rows_of_block, width=width)
    if scale is None:
        return losses, ()
    of_own = gradients.own
    if of_own is not None and own is not None and ctx.stops is not None:
        # Each row's own vector serves all its queries.
        summed = torch.zeros_like(own, dtype=dtype)
        of_own = summed.index_add_(0, row_of_query(columns, ctx.stops), of_own)
    push = columns.push
    of_columns = [
        None if not live else gradient if factor == 1 else gradient * factor
        for live, gradient, factor in zip(ctx.live, gradients.columns, push, strict=True)
    ]
    of_weights = None if log_weights is None else gradients.log_weights
    return losses, (gradients.users, of_own, of_weights, *of_columns)


# Batches are as large as the one before: what does not depend on their content is made once.
@lru_cache(maxsize=8)
def _constant(size: int, value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`[size]` times the same number; not to be written to."""
    return torch.full((size,), value, dtype=dtype, device=device)


@lru_cache(maxsize=8)
def _one_by_one(rows: int, device: torch.device) -> Tensor:
    """`[rows]` where the queries of each row end, if it has one; not to be written to."""
    return torch.arange(1, rows + 1, device=device)


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Full precision inside. Entering torch.autocast costs as much as a small matrix product."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
