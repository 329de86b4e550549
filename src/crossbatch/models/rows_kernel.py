"""What happens to rows of a table on their way through a tower, compiled by numba.

Arrays are float32, ids int64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from crossbatch.kernels.memory import copy, prefetch_line

if TYPE_CHECKING:
    Array = np.ndarray

# Rows asked for before they are needed: they lie anywhere in a table larger than any cache.
AHEAD = 16
LINE = 16  # float32 values of a cache line
TINY = 1e-8  # a vector that is shorter has no direction


@njit(cache=True, error_model="numpy", nogil=True)
def gather(tables: tuple[Array, ...], ids: tuple[Array, ...], firsts: Array, out: Array) -> None:
    """Copy rows of `tables` `[R_i, d_i]` next to each other.

    Args:
        tables: One or more.
        ids: `[n]` rows of each.
        firsts: `[tables]` first column of each in `out`.
        out: `[n, >= Σ d_i]`, written there.
    """
    for i in range(len(tables)):
        table, rows, first = tables[i], ids[i], firsts[i]
        for n in range(rows.shape[0]):
            if n + AHEAD < rows.shape[0]:
                for k in range(0, table.shape[1], LINE):
                    prefetch_line(table, rows[n + AHEAD], k)
            copy(table[rows[n]], out[n, first : first + table.shape[1]])


@njit(cache=True, error_model="numpy", nogil=True)
def values_at(values: Array, ids: Array) -> Array:
    """`values` `[R]`, integers of any width, at `ids` `[n]`, as int64 `[n]`."""
    found = np.empty(ids.shape[0], dtype=np.int64)
    for n in range(ids.shape[0]):
        found[n] = values[ids[n]]
    return found


@njit(cache=True, error_model="numpy", nogil=True)
def bags_until(stops: Array) -> tuple[Array, Array]:
    """Whose each of P rows is `[P]`, and what one counts in the mean of its bag `[B]`.

    Args:
        stops: `[B]` where each bag ends, the last of them at P.
    """
    B = stops.shape[0]
    bags = np.empty(stops[-1] if B > 0 else 0, dtype=np.int64)
    share = np.empty(B, dtype=np.float32)
    start = 0
    for b in range(B):
        bags[start : stops[b]] = b
        share[b] = np.float32(1) / np.float32(max(stops[b] - start, 1))
        start = stops[b]
    return bags, share


@njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
def mean_columns(
    tables: tuple[Array, ...],
    ids: tuple[Array, ...],
    firsts: Array,
    stops: Array,
    share: Array,
    out: Array,
) -> None:
    """The means of rows of `tables` over histories, next to each other.

    Args:
        tables: `[R_i, d_i]`, one or more.
        ids: `[P]` rows of each, history after history.
        firsts: `[tables]` first column of each in `out`.
        stops: `[B]` where each history ends.
        share: `[B]` what one row counts in its mean.
        out: `[B, >= Σ d_i]`, written there; zeros for an empty history.
    """
    for i in range(len(tables)):
        table, rows, d = tables[i], ids[i], tables[i].shape[1]
        for b in range(stops.shape[0]):
            total = out[b, firsts[i] : firsts[i] + d]
            total[:] = 0
            for n in range(stops[b - 1] if b > 0 else 0, stops[b]):
                if n + AHEAD < rows.shape[0]:
                    for k in range(0, d, LINE):
                        prefetch_line(table, rows[n + AHEAD], k)
                row = table[rows[n]]
                for k in range(d):
                    total[k] += row[k]
            for k in range(d):
                total[k] *= share[b]


@njit(cache=True, error_model="numpy", nogil=True)
def bags_of(values: Array, offsets: Array, ids: Array) -> tuple[Array, Array]:
    """The values of all of `ids` `[n]`, one after the other, and whose each is. Both int64 `[m]`.

    Args:
        values: Integers of any width; row r owns those from `offsets[r]` to `offsets[r + 1]`.
        offsets: `[R + 1]`.
        ids: Rows.
    """
    size = 0
    for row in ids:
        size += offsets[row + 1] - offsets[row]
    found, bags = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    place = 0
    for n in range(ids.shape[0]):
        for k in range(offsets[ids[n]], offsets[ids[n] + 1]):
            found[place], bags[place] = values[k], n
            place += 1
    return found, bags


@njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
def mean_bags(table: Array, rows: Array, bags: Array, out: Array, share: Array) -> None:
    """The mean of the rows of each bag.

    Args:
        table: `[R, d]`.
        rows: `[m]`, bag after bag.
        bags: `[m]` of each row.
        out: `[n, d]`, written; zeros for an empty bag.
        share: `[n]`, written: what one row counts in its mean.
    """
    out[:], share[:] = 0, 0
    for i in range(rows.shape[0]):
        row, total = table[rows[i]], out[bags[i]]
        share[bags[i]] += 1
        for k in range(total.shape[0]):
            total[k] += row[k]
    for n in range(share.shape[0]):
        share[n] = np.float32(1) / max(share[n], np.float32(1))
    scale_rows(out, share)


@njit(cache=True, error_model="numpy", nogil=True)
def add_rows(rows: Array, sources: Array, targets: Array, totals: Array) -> None:
    """Add row `sources[i]` of `rows` `[m, d]` to row `targets[i]` of `totals` `[n, d]`."""
    for i in range(sources.shape[0]):
        row, total = rows[sources[i]], totals[targets[i]]
        for k in range(total.shape[0]):
            total[k] += row[k]


@njit(cache=True, error_model="numpy", nogil=True)
def scale_rows(rows: Array, factors: Array) -> None:
    """Multiply each row of `rows` `[n, d]` by its factor `[n]`, in place."""
    for n in range(rows.shape[0]):
        row = rows[n]
        for k in range(row.shape[0]):
            row[k] *= factors[n]


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True)
def unit(vectors: Array, out: Array, lengths: Array) -> None:
    """`vectors` `[n, d]` at length 1 in `out`, and their lengths `[n]`; zero vectors stay zero."""
    for n in range(vectors.shape[0]):
        source, place = vectors[n], out[n]
        square = np.float32(0)
        for k in range(source.shape[0]):
            square += source[k] * source[k]
        lengths[n] = np.sqrt(square)
        factor = np.float32(0) if lengths[n] < TINY else np.float32(1) / lengths[n]
        for k in range(source.shape[0]):
            place[k] = source[k] * factor


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True)
def unit_backward(grad: Array, units: Array, lengths: Array, out: Array) -> None:
    """Gradient `[n, d]` of the vectors that `unit` was given, from that of what it gave."""
    for n in range(grad.shape[0]):
        g, direction, place = grad[n], units[n], out[n]
        along = np.float32(0)
        for k in range(g.shape[0]):
            along += g[k] * direction[k]
        factor = np.float32(0) if lengths[n] < TINY else np.float32(1) / lengths[n]
        for k in range(g.shape[0]):
            place[k] = (g[k] - along * direction[k]) * factor
