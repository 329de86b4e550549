"""Losses and gradients of a softmax, in blocks of rows: the inside of `sampled_softmax`.

The scores of a block turn into gradients in place. As torch operations that is nine passes over the
block; compiled, it is one over each row while the row is in the cache.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    array,
    np,
    usable,
)
from crossbatch.kernels.parallel import Part, equal_histories, run_parts
from crossbatch.kernels.products import multiply, worth_it
from crossbatch.kernels.ragged import lengths
from crossbatch.kernels.softmax_compiled import (
    BUCKETS,
    multiply_back,
    multiply_columns,
    softmax_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from crossbatch.kernels.compiler import Array
    from crossbatch.kernels.softmax_streamed import Streamed


@dataclass(slots=True)
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


@dataclass(slots=True)
class Rows:
    """The B rows of a softmax, and the vectors of its columns.

    Attributes:
        u: `[P, d]` queries, without gaps.
        own: `[P, d]` own vector of each query's row; None where it is among the columns.
        parts: `[n_i, d]` vectors of the columns.
        log_weights: `[P]` of the queries.
        stops: `[B]` where the queries of each row end.
        scale: `[B]` weight of each loss.
        streamed: What the last column stands for, which has no vector then; or None.
    """

    u: Tensor
    own: Tensor | None
    parts: Sequence[Tensor]
    log_weights: Tensor
    stops: Tensor
    scale: Tensor
    streamed: Streamed | None = None

    def part(self, part: Part) -> Rows:
        """Some of the rows."""
        own, queries = self.own, slice(part.first, part.last)
        return Rows(
            self.u[queries],
            None if own is None else own[queries],
            self.parts,
            self.log_weights[queries],
            self.stops[part.start : part.stop] - part.first,
            self.scale[part.start : part.stop],
            None if self.streamed is None else self.streamed.part(queries),
        )


class Gradients:
    """Room for the gradients of rows; empty tensors stand for those that are not needed.

    Args:
        rows: Whose gradients.
        live: Which groups of columns need one.
        wanted: Whether any is wanted.

    Attributes:
        users: `[P, d]` of the queries.
        own: `[P, d]` of the own vectors; None where these are among the columns.
        log_weights: `[P]`.
        columns: `[n_i, d]` of each group of columns.
    """

    def __init__(self, rows: Rows, live: Sequence[bool], *, wanted: bool) -> None:
        u, d = rows.u, rows.u.shape[1]
        P = u.shape[0] if wanted else 0
        self.users = u.new_empty(P, d) if rows.parts else u.new_zeros(P, d)
        self.own = None if rows.own is None else u.new_empty(P, d)
        self.log_weights = u.new_empty(u.shape[0])
        sizes = [part.shape[0] if wanted else 0 for part in rows.parts]
        self.columns = [u.new_empty(n * keep, d) for n, keep in zip(sizes, live, strict=True)]

    def part(self, part: Part) -> Gradients:
        """The room for some of the rows; all but the first part have their own for the columns."""
        found, queries = copy(self), slice(part.first, part.last)
        found.users, found.log_weights = self.users[queries], self.log_weights[queries]
        found.own = None if self.own is None else self.own[queries]
        if part.number:
            found.columns = [torch.empty_like(each) for each in self.columns]
        return found


def softmax_blocks(
    columns: Columns, rows: Rows, gradients: Gradients, *, size: int, width: int
) -> Tensor:
    """Losses `[B]`; writes the gradients that there is room for.

    Args:
        columns: The N columns.
        rows: The B rows.
        gradients: Written.
        size: Rows of a block.
        width: Scores that a query has room for; one more than N if there are own vectors.
    """
    losses = rows.u.new_empty(rows.stops.shape[0])
    floats = rows.u, columns.log_q, columns.own_log_q, rows.log_weights, rows.scale
    if not (rows.parts or rows.streamed) or not usable(*floats):
        _multiplied_blocks(columns, rows, gradients, size, width, losses, _plain_rows)
        return losses
    parts = equal_histories(rows.stops, rows.u.shape[0], width)
    if len(parts) == 1:
        _compiled_blocks(columns, rows, gradients, size, width, losses)
        return losses
    rooms = [gradients.part(part) for part in parts]

    def run(part: Part) -> None:
        of_rows, room = slice(part.start, part.stop), rooms[part.number]
        known = columns.rows(part.start, part.stop)
        _compiled_blocks(known, rows.part(part), room, size, width, losses[of_rows])

    run_parts(run, parts)
    for room in rooms[1:]:
        for total, more in zip(gradients.columns, room.columns, strict=True):
            total += more
    return losses


def _compiled_blocks(
    columns: Columns, rows: Rows, gradients: Gradients, size: int, width: int, losses: Tensor
) -> None:
    """`softmax_blocks` on one thread."""
    u, own, stops = rows.u, rows.own, rows.stops
    B, most = stops.shape[0], size
    if rows.streamed or worth_it(min(size, B), width, u.shape[1], u, *rows.parts):
        _multiplied_blocks(columns, rows, gradients, size, width, losses, _compiled_rows)
        return
    if u.shape[0] != B:  # several queries a row
        ends = [0, *stops[size - 1 :: size].tolist(), u.shape[0]]
        most = max(end - start for start, end in pairwise(ends))
    block = u.new_empty(min(most, u.shape[0]), width).numpy()
    queries = array(u)
    own_rows = queries[:0] if own is None else array(own)
    parts = [array(part) for part in rows.parts]  # which must outlive the calls
    groups = [
        (part.ctypes.data, len(part), gradient.data_ptr() if len(gradient) else 0)
        for part, gradient in zip(parts, gradients.columns, strict=True)
    ]
    factors, softmax = np.array(groups, dtype=np.int64), _softmax(columns, rows, gradients, losses)
    users, stop = gradients.users.numpy(), array(stops)
    of_own = own_rows if gradients.own is None else gradients.own.numpy()
    start = 0
    for first in range(0, B, size):
        last = min(first + size, B)
        end = stop[last - 1]
        some, its_own, scores = queries[start:end], own_rows[start:end], block[: end - start]
        multiply_columns(some, its_own, factors, scores)
        softmax(scores, first, last, start, end)
        if len(users):
            places = users[start:end], of_own[start:end]
            multiply_back(scores, some, its_own, factors, start > 0, *places)
        start = end


def _softmax(
    columns: Columns, rows: Rows, gradients: Gradients, losses: Tensor
) -> Callable[[Array, int, int, int, int], None]:
    """`softmax_rows` of the rows `first` to `last`, whose queries are `start` to `end`."""
    log_weights, stops, scale = array(rows.log_weights), array(rows.stops), array(rows.scale)
    log_q, own_log_q = array(columns.log_q), array(columns.own_log_q)
    row_keys, column_keys = array(columns.row_keys), array(columns.column_keys)
    exclude = (
        np.empty((0, 0), dtype=np.bool_) if columns.exclude is None else array(columns.exclude)
    )
    chains = np.empty(BUCKETS + len(stops), dtype=np.int32)
    written, pulls = losses.numpy(), gradients.log_weights.numpy()

    def run(scores: Array, first: int, last: int, start: int, end: int) -> None:
        some = slice(first, last)
        softmax_rows(
            scores, log_weights[start:end], stops[some] - start, log_q, row_keys[some],
            column_keys, exclude[some], own_log_q[some],
            -1 if columns.own is None else columns.own + first, scale[some], chains,
            written[some], pulls[start:end],
        )  # fmt: skip

    return run


def _multiplied_blocks(
    columns: Columns,
    rows: Rows,
    gradients: Gradients,
    size: int,
    width: int,
    losses: Tensor,
    turn: Callable[[Columns, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> None:
    """`softmax_blocks` with products by torch; `turn` is `_plain_rows` or does as it does."""
    u, own, stops = rows.u, rows.own, rows.stops
    B, N, start = stops.shape[0], columns.column_keys.shape[0], 0
    begins = list(accumulate((len(part) for part in rows.parts), initial=0))
    whole = None
    if turn is not _plain_rows:  # that one is slow in any case, and copies no columns
        # One product whose width is a multiple of 16 is faster than several.
        whole = torch.cat([*rows.parts, u.new_zeros(width - begins[-1], u.shape[1])])
    for first in range(0, B, size):
        last = min(first + size, B)
        end = int(stops[last - 1])
        some = u[start:end]
        if whole is not None:
            scores = multiply(some, whole.t())
        else:
            products = [torch.mm(some, part.t()) for part in rows.parts]
            scores = torch.cat([*products, some.new_zeros(len(some), width - N)], dim=1)
        if own is not None:
            scores[:, N] = torch.linalg.vecdot(some, own[start:end])
        if rows.streamed:
            scores[:, N - 1] = rows.streamed.logits[start:end]
        losses[first:last], gradients.log_weights[start:end] = turn(
            columns.rows(first, last),
            scores,
            rows.log_weights[start:end],
            stops[first:last] - start,
            rows.scale[first:last],
        )
        if len(gradients.users):
            users = gradients.users[start:end]
            if whole is not None:
                users.copy_(multiply(scores, whole))
            else:
                users.zero_()
                for part, place in zip(rows.parts, begins, strict=False):
                    users.addmm_(scores[:, place : place + len(part)], part)
            if rows.streamed:
                users.addcmul_(rows.streamed.means[start:end], scores[:, N - 1 : N])
            _add_column_gradients(gradients.columns, begins, scores, some, first == 0)
            if own is not None and gradients.own is not None:
                pull = scores[:, N].unsqueeze(1)
                users.addcmul_(own[start:end], pull)
                torch.mul(some, pull, out=gradients.own[start:end])
        start = end


def _add_column_gradients(
    gradients: Sequence[Tensor], begins: Sequence[int], scores: Tensor, users: Tensor, first: bool
) -> None:
    """Add `scoresᵀ users` `[N, d]` to the gradients of those groups of columns that have any.

    Args:
        gradients: `[n_i, d]` of each group, or empty; overwritten by the `first` block.
        begins: Where each group's columns begin.
        scores: `[p, ≥ N]` gradients of a block's scores.
        users: `[p, d]`.
        first: Whether this is the first block.
    """
    live = [i for i, gradient in enumerate(gradients) if len(gradient)]
    if not live:
        return
    begin, end = begins[live[0]], begins[live[-1]] + len(gradients[live[-1]])
    # A product with a part of the columns copies them, see `without_gaps`.
    if 2 * (end - begin) > scores.shape[1]:
        begin, end = 0, scores.shape[1]
    added = multiply(scores[:, begin:end].t(), users)
    for i in live:
        found, more = gradients[i], added[begins[i] - begin :][: len(gradients[i])]
        found.copy_(more) if first else found.add_(more)


def _compiled_rows(
    columns: Columns, block: Tensor, log_weights: Tensor, stops: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """As `_plain_rows`, in one pass over each row while it is in the cache."""
    losses, pulls = block.new_empty(stops.shape[0]), block.new_empty(len(block))
    exclude = columns.exclude
    softmax_rows(
        block.numpy(),
        array(log_weights),
        array(stops),
        array(columns.log_q),
        array(columns.row_keys),
        array(columns.column_keys),
        np.empty((0, 0), dtype=np.bool_) if exclude is None else array(exclude),
        array(columns.own_log_q),
        -1 if columns.own is None else columns.own,
        array(scale),
        np.empty(BUCKETS + len(losses), dtype=np.int32),
        losses.numpy(),
        pulls.numpy(),
    )
    return losses, pulls


def _plain_rows(
    columns: Columns, block: Tensor, log_weights: Tensor, stops: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn a block `[p, ≥ N]` of scores into the gradients of the losses, in place.

    Behind the N columns stands the score of the row's own positive, unless it is among them.
    Returns the losses `[b]`, and the gradients `[p]` of the log-weights.
    """
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
