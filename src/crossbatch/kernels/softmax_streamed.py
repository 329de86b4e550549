"""Columns without a gradient, such as a large bank, as one column of a softmax.

All that a row's loss needs of them is the log-sum-exp of their logits, and all that the gradient of
its query needs is their mean, weighted by the softmax. Both come from one pass over the columns in
tiles that never leave the cache: sums so far are scaled down when a larger logit shows up. The
logits of 100,000 columns at once would go to memory and back several times.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossbatch.kernels.compiler import array, np, usable
from crossbatch.kernels.parallel import Part, equal_parts, run_parts
from crossbatch.kernels.products import multiply
from crossbatch.kernels.softmax_compiled import BUCKETS, fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.kernels.softmax_blocks import Columns, Gradients, Rows

ROWS, TILE = 256, 1024  # queries and columns of a tile: logits and vectors stay in a core's cache
FEWEST_COLUMNS = 1 << 14  # with fewer, blocks of all columns take no longer


@dataclass(slots=True)
class Streamed:
    """Columns of a softmax as one.

    Attributes:
        logits: `[P]` log-sum-exp of each query's logits, −inf where it has none.
        means: `[P, d]` mean of the columns' vectors, weighted by their softmax; `[0, d]` where no
            gradient is wanted.
    """

    logits: Tensor
    means: Tensor

    def part(self, queries: slice) -> Streamed:
        """That of some queries."""
        return Streamed(self.logits[queries], self.means[queries])


def with_streamed(
    columns: Columns, rows: Rows, gradients: Gradients, live: Sequence[bool]
) -> tuple[Columns, Rows, Gradients]:
    """The same softmax with one column for those without a gradient, where these are many.

    Args:
        columns: All columns.
        rows: With the vectors of all columns.
        gradients: Room for those of all columns.
        live: Which groups of columns need a gradient.
    """
    sizes = [len(part) for part in rows.parts]
    begins = list(accumulate(sizes, initial=0))
    own = -1 if columns.own is None else columns.own
    last = own + len(rows.stops)
    keep = [
        needed or (own >= 0 and begin < last and begin + n > own)  # positives stay columns
        for needed, begin, n in zip(live, begins, sizes, strict=False)
    ]
    frozen = [i for i, stays in enumerate(keep) if not stays]
    numbers = rows.u, columns.log_q, columns.own_log_q, rows.log_weights, rows.scale
    enough = len(rows.stops) and sum([sizes[i] for i in frozen]) >= FEWEST_COLUMNS
    if not enough or not usable(*numbers):
        return columns, rows, gradients
    some = _groups(columns, begins, frozen)
    parts = [rows.parts[i] for i in frozen]
    one = streamed(some, rows.u, parts, rows.stops, with_means=bool(len(gradients.users)))
    kept = [i for i, stays in enumerate(keep) if stays]
    room = copy(gradients)
    room.columns = [gradients.columns[i] for i in kept]
    reduced = replace(rows, parts=[rows.parts[i] for i in kept], streamed=one)
    return _with_one_more(_groups(columns, begins, kept)), reduced, room


def _groups(columns: Columns, begins: Sequence[int], groups: Sequence[int]) -> Columns:
    """Some of the groups of columns; a group begins where `begins` says and ends with the next."""
    device = columns.log_q.device
    ranges = [torch.arange(begins[i], begins[i + 1], device=device) for i in groups]
    where = torch.cat([torch.arange(0, device=device), *ranges])
    own = columns.own
    if own is not None:
        own = int((where < own).sum())
    return replace(
        columns,
        log_q=columns.log_q[where],
        column_keys=columns.column_keys[where],
        exclude=None if columns.exclude is None else columns.exclude[:, where],
        own=own,
    )


def _with_one_more(columns: Columns) -> Columns:
    """These columns and one more that no row leaves out, without a correction."""
    keys, exclude = columns.column_keys, columns.exclude
    other = columns.row_keys.amin().sub(1).view(1) if len(columns.row_keys) else keys.new_zeros(1)
    if exclude is not None:
        exclude = torch.cat([exclude, exclude.new_zeros(len(exclude), 1)], dim=1)
    log_q = torch.cat([columns.log_q, columns.log_q.new_zeros(1)])
    return replace(columns, log_q=log_q, column_keys=torch.cat([keys, other]), exclude=exclude)


def streamed(
    columns: Columns, u: Tensor, vectors: Sequence[Tensor], stops: Tensor, *, with_means: bool
) -> Streamed:
    """Columns as one.

    Args:
        columns: What is known of them.
        u: `[P, d]` queries.
        vectors: `[n_i, d]` of the columns.
        stops: `[B]` where the queries of each row end.
        with_means: Whether a gradient is wanted.
    """
    tiles = [tile for part in vectors for tile in part.split(TILE)]
    begins = list(accumulate((len(tile) for tile in tiles), initial=0))
    parts = equal_parts(len(tiles), len(u) * TILE)
    found: list[list[Streamed]] = [[] for _ in parts]

    def run(part: Part) -> None:
        some, first, start = slice(part.start, part.stop), 0, 0
        while first < len(stops):
            last = int(torch.searchsorted(stops, start + ROWS, right=True))
            last = max(last, first + 1)  # a row of more queries than that
            end = int(stops[last - 1])
            known, ends = columns.rows(first, last), stops[first:last] - start
            block = _fold_up(known, u[start:end], tiles[some], begins[some], ends, with_means)
            found[part.number].append(block)
            first, start = last, end

    run_parts(run, parts)
    whole = [
        Streamed(torch.cat([b.logits for b in blocks]), torch.cat([b.means for b in blocks]))
        for blocks in found
    ]
    return whole[0] if len(whole) == 1 else _joined(whole)


def _joined(parts: Sequence[Streamed]) -> Streamed:
    """Several columns as one."""
    logits = torch.stack([part.logits for part in parts])
    total = logits.logsumexp(dim=0)
    shares = (logits - total.where(total > -torch.inf, 0.0)).exp()
    means = torch.zeros_like(parts[0].means)
    for part, share in zip(parts, shares, strict=True):
        if len(means):
            means.addcmul_(part.means, share.unsqueeze(1))
    return Streamed(total, means)


def _fold_up(
    columns: Columns,
    u: Tensor,
    tiles: Sequence[Tensor],
    begins: Sequence[int],
    stops: Tensor,
    with_means: bool,
) -> Streamed:
    """`streamed` for a block of rows, on one thread; a tile's columns begin at `begins`."""
    p, d = u.shape
    peaks, masses, factors = u.new_full((p,), -torch.inf), u.new_zeros(p), u.new_empty(p)
    means = u.new_zeros(p if with_means else 0, d)
    log_q, keys, row_keys = map(array, (columns.log_q, columns.column_keys, columns.row_keys))
    exclude, ends = np.empty((0, 0), dtype=np.bool_), array(stops)
    chains = np.empty(BUCKETS + p, dtype=np.int32)
    for tile, begin in zip(tiles, begins, strict=True):
        some = slice(begin, begin + len(tile))
        scores = multiply(u, tile.t())
        if columns.exclude is not None:
            exclude = array(columns.exclude[:, some])
        fold(
            scores.numpy(), ends, log_q[some], row_keys, keys[some], exclude, chains,
            peaks.numpy(), masses.numpy(), factors.numpy(),
        )  # fmt: skip
        if with_means:
            means.mul_(factors.unsqueeze(1)).add_(multiply(scores, tile))
    if with_means:
        means.div_(masses.clamp_min(torch.finfo().tiny).unsqueeze(1))
    return Streamed(peaks + masses.log(), means)
