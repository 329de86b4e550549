"""Sampled softmax: the losses of B rows over N shared columns, and their gradients.

With scores s_rj = u_r·v_j, corrected logits s'_rj = s_rj − log q_j, and Z_r the sum of their
exponentials over the row's own positive and its negatives,

    loss_r = log Z_r − s'_rr        ∂loss_r/∂s_rj = p_rj = e^{s'_rj} / Z_r
                                    ∂loss_r/∂s_rr = p_rr − 1

Plain autograd would save every logit, compute gradients of cached columns that need none, and make
a `[B, N]` mask that costs as much as the exponentials. Here the scores of a block of rows turn, in
place, into the gradients above, and each side's gradient is one product of that block with the
other side's vectors. A bank costs two matrix products and its exponentials; nothing is saved.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    Array,
    array,
    compiled,
    compiled_reordered,
    inlined,
    intrinsic,
    np,
    refuse_second_derivative,
    usable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

CACHE_LINE = 16  # float32 values
CACHED_SCORES = 1 << 20  # of a block of rows: they stay in the cache between two passes
FEWEST_ROWS = 128  # of a block: with fewer, products would wait for the columns
BUCKETS = 1024
LOWEST = -2139095041  # the ordered bits of −inf


@dataclass(frozen=True, slots=True)
class Columns:
    """The N columns of a softmax over B rows, besides their vectors.

    Attributes:
        log_q: `[N]` log-probability of each column under the sampler.
        own_log_q: `[B]` that of the rows' own positives.
        row_keys: `[B]` int64; a column is no negative of the rows whose key it carries.
        column_keys: `[N]` int64.
        exclude: `[B, N]` bool, further columns that are no negatives of a row; or None.
        own: Column of the first row's own positive, where the positives are among the columns in
            the order of the rows; None where they are not.
        push: Factor of the gradient of each group of columns.
    """

    log_q: Tensor
    own_log_q: Tensor
    row_keys: Tensor
    column_keys: Tensor
    exclude: Tensor | None = None
    own: int | None = None
    push: tuple[float, ...] = (1.0,)

    def rows(self, start: int, stop: int) -> Columns:
        """The same columns, for some of the rows."""
        if start == 0 and stop == self.row_keys.shape[0]:
            return self
        return Columns(
            self.log_q,
            self.own_log_q[start:stop],
            self.row_keys[start:stop],
            self.column_keys,
            None if self.exclude is None else self.exclude[start:stop],
            None if self.own is None else self.own + start,
            self.push,
        )


def definition(
    columns: Columns, users: Tensor, own_vectors: Tensor, vectors: Sequence[Tensor]
) -> Tensor:
    """Losses `[B]` in plain autograd; arguments as in `sampled_softmax`."""
    dtype = torch.promote_types(users.dtype, torch.float32)
    with torch.autocast(users.device.type, enabled=False):
        u = users.to(dtype)
        own = (u * own_vectors.to(dtype)).sum(dim=1) - columns.own_log_q  # [B]
        pushed = [_pushed(v, push) for v, push in zip(vectors, columns.push, strict=True)]
        logits = torch.cat([u @ v.to(dtype).T for v in pushed], dim=1) - columns.log_q
        dropped = columns.row_keys.unsqueeze(1) == columns.column_keys  # [B, N]
        if columns.exclude is not None:
            dropped = dropped | columns.exclude
        logits = logits.masked_fill(dropped, float("-inf"))
        return torch.cat([own.unsqueeze(1), logits], dim=1).logsumexp(dim=1) - own


def _pushed(vectors: Tensor, push: float) -> Tensor:
    """The same vectors with their gradient multiplied by `push`."""
    return vectors if push == 1 else vectors.detach() + push * (vectors - vectors.detach())


def sampled_softmax(
    columns: Columns,
    users: Tensor,
    own_vectors: Tensor,
    vectors: Sequence[Tensor],
    *,
    mean: bool = False,
    block_rows: int | None = None,
) -> Tensor:
    """Losses `[B]`, or their mean.

    Args:
        columns: What is known of the columns besides their vectors.
        users: `[B, d]`, divided by the temperature.
        own_vectors: `[B, d]` of the rows' own positives.
        vectors: `[n_i, d]` groups of columns, N in all.
        mean: Whether to return the mean. Its gradients are computed along with it; those of single
            losses in the backward pass, once their weights are known.
        block_rows: Rows of the scores in memory at a time; by default as many as the cache holds.
    """
    _check(columns, users, vectors)
    own = own_vectors if columns.own is None else None
    losses: Tensor = _SampledSoftmax.apply(  # type: ignore[no-untyped-call]
        columns, mean, block_rows, users, own, *vectors
    )
    return losses


def _check(columns: Columns, users: Tensor, vectors: Sequence[Tensor]) -> None:
    B, N = users.shape[0], sum([v.shape[0] for v in vectors])
    if columns.row_keys.shape != (B,) or columns.own_log_q.shape != (B,):
        raise ValueError(f"row_keys and own_log_q must have shape [{B}], one entry for each row")
    if columns.column_keys.shape != (N,) or columns.log_q.shape != (N,):
        raise ValueError(f"column_keys and log_q must have shape [{N}], one entry for each column")
    if columns.exclude is not None and columns.exclude.shape != (B, N):
        raise ValueError(f"exclude must have shape [{B}, {N}], got {list(columns.exclude.shape)}")
    if columns.own is not None and not 0 <= columns.own <= N - B:
        raise ValueError(f"own must leave room for {B} of {N} columns, got {columns.own}")


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        columns: Columns,
        mean: bool,
        block_rows: int | None,
        users: Tensor,
        own: Tensor | None,
        *vectors: Tensor,
    ) -> Tensor:
        ctx.columns, ctx.block_rows = columns, block_rows
        ctx.live = ctx.needs_input_grad[5:]
        scale = 1 / users.shape[0] if mean and any(ctx.needs_input_grad) else None
        with no_autocast(users.device):
            losses, gradients = _blocks(
                columns, users, own, vectors, scale, ctx.live, block_rows=block_rows
            )
        ctx.mean = mean
        ctx.save_for_backward(*gradients if mean else (users, own, *vectors))
        return losses.mean() if mean else losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("sampled_softmax_loss")
        saved = ctx.saved_tensors
        if ctx.mean:
            factor = float(grad)
            if factor != 1:
                saved = [None if gradient is None else gradient * factor for gradient in saved]
            return None, None, None, *saved
        users, own, *vectors = saved
        with no_autocast(users.device):
            _, gradients = _blocks(
                ctx.columns, users, own, vectors, grad, ctx.live, block_rows=ctx.block_rows
            )
        return None, None, None, *gradients


def _blocks(
    columns: Columns,
    users: Tensor,
    own: Tensor | None,
    vectors: Sequence[Tensor],
    scale: float | Tensor | None,
    live: Sequence[bool],
    *,
    block_rows: int | None,
) -> tuple[Tensor, list[Tensor | None]]:
    """Losses `[B]`, and gradients of users, own vectors and live groups of columns.

    Args:
        columns: As in `sampled_softmax`, like those that follow.
        users: …
        own: None where the positives are among the columns.
        vectors: …
        scale: Weight of each loss: one number, `[B]`, or None for losses without gradients.
        live: Which groups of columns need a gradient.
        block_rows: …
    """
    u = _as(users, torch.promote_types(users.dtype, torch.float32)).contiguous()
    parts = [_as(part, u.dtype) for part in vectors]
    own = None if own is None else _as(own, u.dtype)
    sizes = [part.shape[0] for part in parts]
    B, N = u.shape[0], sum(sizes)
    # Rows begin at full cache lines, or the products would take an eighth longer.
    width = (N + (own is not None) + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE
    size = block_rows or max(FEWEST_ROWS, CACHED_SCORES // max(width, 1))
    block, losses = u.new_empty(min(size, B), width), u.new_empty(B)
    gradients = _Gradients(u, own, parts, live) if scale is not None else None
    for start in range(0, B, size):
        stop = min(start + size, B)
        some, scores = u[start:stop], block[: stop - start]
        places = scores.narrow(1, 0, N).split(sizes, dim=1) if sizes else ()
        for place, part in zip(places, parts, strict=True):
            torch.mm(some, part.t(), out=place)
        if own is not None:
            scores[:, N] = torch.linalg.vecdot(some, own[start:stop])
        factor = scale[start:stop] if isinstance(scale, Tensor) else scale
        losses[start:stop] = softmax_rows_(columns.rows(start, stop), scores, factor)
        if gradients is not None:
            gradients.add(start, stop, some, scores, places)
    return losses, gradients.found(columns.push) if gradients else []


class _Gradients:
    """Gradients that add up over the blocks of rows."""

    def __init__(
        self, u: Tensor, own: Tensor | None, parts: Sequence[Tensor], live: Sequence[bool]
    ) -> None:
        self.own_vectors, self.parts = own, parts
        self.users = torch.empty_like(u) if parts else torch.zeros_like(u)
        self.own = None if own is None else torch.empty_like(u)
        self.columns = [
            torch.empty_like(part, memory_format=torch.contiguous_format) if needed else None
            for part, needed in zip(parts, live, strict=True)
        ]

    def add(
        self, start: int, stop: int, some: Tensor, block: Tensor, places: Sequence[Tensor]
    ) -> None:
        """Take in rows `start` to `stop`, whose block of scores has become one of gradients."""
        users = self.users[start:stop]
        first = 0 if start == 0 else 1  # what there was before counts from the second block on
        for i, (place, part) in enumerate(zip(places, self.parts, strict=True)):
            torch.addmm(users, place, part, beta=0 if i == 0 else 1, out=users)
            column = self.columns[i]
            if column is not None:
                torch.addmm(column, place.t(), some, beta=first, out=column)
        if self.own is not None and self.own_vectors is not None:
            pull = block[:, sum([place.shape[1] for place in places])].unsqueeze(1)
            users.addcmul_(self.own_vectors[start:stop], pull)
            torch.mul(some, pull, out=self.own[start:stop])

    def found(self, push: Sequence[float]) -> list[Tensor | None]:
        """All of them, in the order of the arguments."""
        columns = [
            gradient if gradient is None or factor == 1 else gradient * factor
            for gradient, factor in zip(self.columns, push, strict=True)
        ]
        return [self.users, self.own, *columns]


def softmax_rows_(columns: Columns, block: Tensor, scale: float | Tensor | None) -> Tensor:
    """Turn a block `[b, ≥ N]` of scores into the gradients of the losses, in place.

    Behind the N columns stands the score of the row's own positive, unless it is among them.

    Returns:
        The losses `[b]`.
    """
    N = columns.column_keys.shape[0]
    factor = scale if isinstance(scale, float) else 1.0
    if usable(block, columns.log_q, columns.own_log_q):
        losses = block.new_empty(block.shape[0])
        nothing = np.empty((0, 0), dtype=np.bool_)
        _softmax_rows(
            block.numpy(),
            array(columns.log_q),
            array(columns.row_keys),
            array(columns.column_keys),
            nothing if columns.exclude is None else array(columns.exclude),
            array(columns.own_log_q),
            -1 if columns.own is None else columns.own,
            factor,
            losses.numpy(),
        )
    else:
        losses = _softmax_rows_plain(columns, block, factor)
    if isinstance(scale, Tensor):
        block.narrow(1, 0, N + (columns.own is None)).mul_(scale.unsqueeze(1))
    return losses


def _softmax_rows_plain(columns: Columns, block: Tensor, scale: float) -> Tensor:
    N = columns.column_keys.shape[0]
    at = N if columns.own is None else columns.own
    own = block[:, N] if columns.own is None else block.narrow(1, at, block.shape[0]).diagonal()
    own_logit = own - columns.own_log_q
    logits = block.narrow(1, 0, N)
    logits -= _as(columns.log_q, block.dtype)
    dropped = columns.row_keys.unsqueeze(1) == columns.column_keys
    if columns.exclude is not None:
        dropped = dropped | columns.exclude
    logits.masked_fill_(dropped, float("-inf"))
    own.copy_(own_logit)
    used = block.narrow(1, 0, N + (columns.own is None))
    peak = used.amax(dim=1, keepdim=True)
    total = used.sub_(peak).exp_().sum(dim=1, keepdim=True)
    used *= scale / total
    # A sum of small terms: a small loss survives large logits, and so does p − 1 = e^{−loss} − 1.
    losses: Tensor = total.squeeze(1).log() + (peak.squeeze(1) - own_logit)
    own.copy_(scale * torch.expm1(-losses))
    return losses


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Full precision inside. Entering torch.autocast costs as much as a small matrix product."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    # Asking is cheaper than a conversion that finds nothing to do.
    return x if x.dtype == dtype else x.to(dtype)


# ---- compiled: one pass over a row while it is in the cache; as torch operations it is nine ------

exponential, float_as_bits = intrinsic("exponential"), intrinsic("float_as_bits")
bits_as_float = intrinsic("bits_as_float")


@compiled_reordered
def _softmax_rows(
    block: Array,
    log_q: Array,
    row_keys: Array,
    column_keys: Array,
    exclude: Array,
    own_log_q: Array,
    own: int,
    scale: float,
    losses: Array,
) -> None:
    """`softmax_rows_`; `own` is −1 for a score behind the columns, `exclude` may be empty."""
    B, N = block.shape[0], column_keys.shape[0]
    for r in range(B):
        losses[r] = block[r, N if own < 0 else own + r] - own_log_q[r]  # the own logit, for now
    _drop_matches(block, row_keys, column_keys)
    for r in range(exclude.shape[0]):
        for c in range(N):
            block[r, c] = np.float32(-np.inf) if exclude[r, c] else block[r, c]
    for r in range(B):
        row, own_logit = block[r, :N], losses[r]
        peak = max(_correct(row, log_q), own_logit)
        total = _exponentials(row, peak) + np.exp(own_logit - peak)
        share = np.float32(scale) / total
        for c in range(N):
            row[c] *= share
        losses[r] = np.log(total) + (peak - own_logit)
        block[r, N if own < 0 else own + r] = np.float32(scale) * np.expm1(-losses[r])


@compiled
def _drop_matches(block: Array, row_keys: Array, column_keys: Array) -> None:
    """−inf where a column carries the row's key; rows are chained by the last bits of theirs."""
    last_bits = BUCKETS - 1
    head = np.empty(BUCKETS, dtype=np.int32)
    for bucket in range(BUCKETS):
        head[bucket] = -1
    following = np.empty(row_keys.shape[0], dtype=np.int32)
    for r in range(row_keys.shape[0]):
        bucket = row_keys[r] & last_bits
        following[r] = head[bucket]
        head[bucket] = r
    for c in range(column_keys.shape[0]):
        r = head[column_keys[c] & last_bits]
        while r >= 0:
            if row_keys[r] == column_keys[c]:
                block[r, c] = -np.inf
            r = following[r]


@compiled
def _correct(row: Array, log_q: Array) -> Any:
    """Subtract log q in place; return the maximum.

    Of integers, because a running maximum of floats is not vectorised: with the bits of negative
    numbers flipped, floats are in the order of their bits.
    """
    highest = np.int32(LOWEST)
    for c in range(row.shape[0]):
        row[c] -= log_q[c]
        highest = max(highest, _ordered(float_as_bits(row[c])))
    return bits_as_float(_ordered(highest))


@inlined
def _ordered(bits: Any) -> Any:
    return bits ^ ((bits >> np.int32(31)) & np.int32(2**31 - 1))


@compiled_reordered
def _exponentials(row: Array, peak: Any) -> Any:
    """e^(row − peak) in place; return the sum."""
    total = np.float32(0)
    for c in range(row.shape[0]):
        row[c] = exponential(row[c] - peak)
        total += row[c]
    return total
