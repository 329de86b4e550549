"""A block of softmax scores into losses and gradients, in place: the inside of `sampled_softmax`.

As torch operations this is nine passes over the block; compiled, it is one over each row while the
row is in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    usable,
)
from crossbatch.kernels.ragged import lengths

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


def softmax_rows_(
    columns: Columns, block: Tensor, log_weights: Tensor, stops: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn a block `[p, ≥ N]` of scores into the gradients of the losses, in place.

    Behind the N columns stands the score of the row's own positive, unless it is among them.

    Args:
        columns: Those of the b rows of the block.
        block: Scores of p queries.
        log_weights: `[p]`.
        stops: `[b]` where the queries of each row end.
        scale: `[b]` weight of each loss.

    Returns:
        The losses `[b]`, and the gradients `[p]` of the log-weights.
    """
    if not usable(block, columns.log_q, columns.own_log_q, log_weights, scale):
        return _softmax_rows_plain(columns, block, log_weights, stops, scale)
    losses, pulls = scale.new_empty(scale.shape), log_weights.new_empty(log_weights.shape)
    nothing = np.empty((0, 0), dtype=np.bool_)
    _softmax_rows(
        block.numpy(),
        array(log_weights),
        array(stops),
        array(columns.log_q),
        array(columns.row_keys),
        array(columns.column_keys),
        nothing if columns.exclude is None else array(columns.exclude),
        array(columns.own_log_q),
        -1 if columns.own is None else columns.own,
        array(scale),
        losses.numpy(),
        pulls.numpy(),
    )
    return losses, pulls


def _softmax_rows_plain(
    columns: Columns, block: Tensor, log_weights: Tensor, stops: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    N, queries = columns.column_keys.shape[0], torch.arange(len(block), device=block.device)
    row = row_of_query(columns, stops)  # [p]
    at = torch.full_like(row, N) if columns.own is None else columns.own + row
    own = block[queries, at] + log_weights - as_type(columns.own_log_q, block.dtype)[row]  # [p]
    logits = block.narrow(1, 0, N)
    logits += log_weights.unsqueeze(1) - as_type(columns.log_q, block.dtype)
    dropped = columns.row_keys.unsqueeze(1) == columns.column_keys
    if columns.exclude is not None:
        dropped = dropped | columns.exclude
    logits.masked_fill_(dropped[row], float("-inf"))
    own_logit = logsumexp_by_row(own, row, columns)  # [b]
    highest = torch.cat([logits, own.unsqueeze(1)], dim=1).amax(dim=1)
    peak = own_logit.scatter_reduce(0, row, highest, "amax")
    mass = logits.sub_(peak[row].unsqueeze(1)).exp_().sum(dim=1)  # [p]
    total = (own_logit - peak).exp().index_add(0, row, mass)
    # A sum of small terms: a small loss survives large logits, and so does p − 1 = e^{−loss} − 1.
    losses = total.log() + (peak - own_logit)
    share = (scale / total)[row]
    logits *= share.unsqueeze(1)
    pull = (scale * torch.expm1(-losses))[row] * (own - own_logit[row]).exp()
    block[queries, at] = pull
    return losses, mass * share + pull


def row_of_query(columns: Columns, stops: Tensor | None) -> Tensor:
    """`[P]` the row that each query belongs to."""
    rows = torch.arange(columns.row_keys.shape[0], device=columns.row_keys.device)
    return rows if stops is None else rows.repeat_interleave(lengths(stops))


def logsumexp_by_row(values: Tensor, row: Tensor, columns: Columns) -> Tensor:
    """`[B]` log of the sum of e^value over the queries `[P]` of each row."""
    B = columns.row_keys.shape[0]
    peak = values.new_full((B,), -torch.inf).scatter_reduce(0, row, values.detach(), "amax")
    return values.new_zeros(B).index_add(0, row, (values - peak[row]).exp()).log() + peak


def as_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` as `dtype`."""
    # Asking is cheaper than a conversion that finds nothing to do.
    return x if x.dtype == dtype else x.to(dtype)


exponential, float_as_bits = intrinsic("exponential"), intrinsic("float_as_bits")
bits_as_float = intrinsic("bits_as_float")


@compiled_reordered
def _softmax_rows(
    block: Array,
    log_weights: Array,
    stops: Array,
    log_q: Array,
    row_keys: Array,
    column_keys: Array,
    exclude: Array,
    own_log_q: Array,
    own: int,
    scale: Array,
    losses: Array,
    pulls: Array,
) -> None:
    """`softmax_rows_`; `own` is −1 for a score behind the columns, `exclude` may be empty."""
    B, N = stops.shape[0], column_keys.shape[0]
    start = 0
    for r in range(B):
        for p in range(start, stops[r]):  # the own logits, for now
            pulls[p] = block[p, N if own < 0 else own + r] + log_weights[p] - own_log_q[r]
        start = stops[r]
    _drop_matches(block, stops, row_keys, column_keys)
    start = 0
    for r in range(exclude.shape[0]):
        for p in range(start, stops[r]):
            for c in range(N):
                block[p, c] = np.float32(-np.inf) if exclude[r, c] else block[p, c]
        start = stops[r]
    start = 0
    for r in range(B):
        own_peak = peak = np.float32(-np.inf)
        for p in range(start, stops[r]):
            own_peak = max(own_peak, pulls[p])
            peak = max(peak, _correct(block[p, :N], log_q) + log_weights[p])
        peak, own_total = max(peak, own_peak), np.float32(0)
        for p in range(start, stops[r]):
            own_total += np.exp(pulls[p] - own_peak)
        own_logit = own_peak + np.log(own_total)
        total = np.exp(own_logit - peak)
        for p in range(start, stops[r]):
            total += _exponentials(block[p, :N], peak - log_weights[p])
        losses[r] = np.log(total) + (peak - own_logit)
        share, pull = scale[r] / total, scale[r] * np.expm1(-losses[r])
        for p in range(start, stops[r]):
            mass = _scaled(block[p, :N], share)
            pulls[p] = pull * np.exp(pulls[p] - own_logit)
            block[p, N if own < 0 else own + r] = pulls[p]
            pulls[p] += mass
        start = stops[r]


@compiled
def _drop_matches(block: Array, stops: Array, row_keys: Array, column_keys: Array) -> None:
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
                for p in range(0 if r == 0 else stops[r - 1], stops[r]):
                    block[p, c] = -np.inf
            r = following[r]


@compiled_reordered
def _scaled(row: Array, factor: Any) -> Any:
    """Multiply in place; return the sum."""
    total = np.float32(0)
    for c in range(row.shape[0]):
        row[c] *= factor
        total += row[c]
    return total


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
