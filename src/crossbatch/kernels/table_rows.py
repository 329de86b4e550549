"""Rows of embedding tables side by side: each on its own, or the mean over bags of ids.

Rows lie anywhere in tables larger than any cache. The compiled forms request a row a little before
it is needed, and write rows of several tables into one tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from crossbatch.kernels.compiler import (
    Array,
    array,
    check_device,
    check_ids,
    compiled,
    intrinsic,
    np,
    usable,
)
from crossbatch.kernels.parallel import Part, equal_histories, equal_parts, run_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

AHEAD = 16  # rows requested before they are needed
LINE = 16  # float32 values of a cache line

prefetch_line, copy = intrinsic("prefetch_line"), intrinsic("copy")


def gather_definition(tables: Sequence[Tensor], ids: Sequence[Tensor]) -> Tensor:
    """As `gather_rows`."""
    return torch.cat(
        [table.index_select(0, own) for table, own in zip(tables, ids, strict=True)], 1
    )


def gather_rows(tables: Sequence[Tensor], ids: Sequence[Tensor]) -> Tensor:
    """Rows `[n, Σ d]` of tables `[R_i, d_i]`, each at ids `[n]` of its own. No gradient."""
    _check(tables, ids)
    if not usable(*tables):
        return gather_definition(tables, ids)
    rows = torch.empty(ids[0].shape[0], sum([table.shape[1] for table in tables]))
    read, numbers, found = _arrays(tables), _arrays(ids), []

    def run(part: Part) -> None:
        some = slice(part.start, part.stop)
        found.append(_gather(read, tuple([own[some] for own in numbers]), rows[some].numpy()))

    run_parts(run, equal_parts(*rows.shape))
    if not all(found):
        raise IndexError(f"ids must be rows of tables of {[len(table) for table in tables]} rows")
    return rows


def mean_definition(
    tables: Sequence[Tensor], ids: Sequence[Tensor], offsets: Tensor
) -> tuple[Tensor, Tensor]:
    """As `mean_rows`."""
    n = len(ids[0])
    sizes = offsets.diff(append=offsets.new_full((1,), n))
    # torch's own function reads past the end for offsets that do not begin at 0 or that fall.
    if bool((sizes < 0).any()) or (n > 0 and not (offsets[:1] == 0).any()):
        raise IndexError(f"offsets must rise from 0 to at most {n}, the number of ids")
    means = [
        functional.embedding_bag(own, table, offsets, mode="mean")
        for table, own in zip(tables, ids, strict=True)
    ]
    return torch.cat(means, dim=1), sizes


def mean_rows(
    tables: Sequence[Tensor], ids: Sequence[Tensor], offsets: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean rows `[B, Σ d]` of bags of ids, zeros for an empty bag; and the bags' sizes `[B]`.

    No gradient.

    Args:
        tables: `[R_i, d_i]`.
        ids: `[n]` rows of each table.
        offsets: `[B]` where each bag begins.
    """
    _check(tables, ids)
    check_ids(offsets=offsets)
    check_device(offsets, *ids)
    if not usable(*tables):
        return mean_definition(tables, ids, offsets)
    means = torch.empty(offsets.shape[0], sum([table.shape[1] for table in tables]))
    sizes = torch.empty_like(offsets)
    read, numbers, n = _arrays(tables), _arrays(ids), ids[0].shape[0]
    parts = [Part(0, 0, offsets.shape[0], 0, n)]
    if torch.get_num_threads() > 1 and len(offsets):
        stops = torch.cat([offsets[1:], offsets.new_full((1,), n)])
        parts = equal_histories(stops, n, means.shape[1])
    found = [0 <= part.first <= part.last <= n for part in parts]

    def run(part: Part) -> None:
        some, bags = slice(part.start, part.stop), slice(part.first, part.last)
        own, begins = tuple([each[bags] for each in numbers]), offsets[some] - part.first
        found.append(_means(read, own, begins.numpy(), means[some].numpy(), sizes[some].numpy()))

    if all(found):
        run_parts(run, parts)
    if not all(found):
        raise IndexError(
            f"ids must be rows of tables of {[len(table) for table in tables]} rows, and offsets "
            f"rise from 0 to at most {ids[0].shape[0]}"
        )
    return means, sizes


def _check(tables: Sequence[Tensor], ids: Sequence[Tensor]) -> None:
    """Raise `ValueError` unless all tables are `[R, d]` and have as many ids."""
    if not tables or len(ids) != len(tables):
        raise ValueError(f"{len(tables)} tables need as many tensors of ids, got {len(ids)}")
    check_device(*tables, *ids)
    for table, own in zip(tables, ids, strict=True):
        check_ids(ids=own)
        if table.dim() != 2 or own.shape != ids[0].shape:
            raise ValueError(
                f"tables must be [R, d] and ids [{len(ids[0])}], got {list(table.shape)} and "
                f"{list(own.shape)}"
            )


def _arrays(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple([array(tensor) for tensor in tensors])


@compiled
def _gather(tables: Any, ids: Any, rows: Array) -> bool:
    """Copy rows next to each other; False for an id that is out of range."""
    first = 0
    for i in range(len(tables)):
        table, own = tables[i], ids[i]
        for n in range(own.shape[0]):
            if n + AHEAD < own.shape[0]:
                for k in range(0, table.shape[1], LINE):
                    prefetch_line(table, own[n + AHEAD], k)
            if not 0 <= own[n] < table.shape[0]:
                return False
            copy(table[own[n]], rows[n, first : first + table.shape[1]])
        first += table.shape[1]
    return True


@compiled
def _means(tables: Any, ids: Any, offsets: Array, means: Array, sizes: Array) -> bool:
    """Write mean rows next to each other; False for an id or an offset that is out of range."""
    B, first = offsets.shape[0], 0
    if ids[0].shape[0] > 0 and (B == 0 or offsets[0] != 0):
        return False
    for i in range(len(tables)):
        table, own, d = tables[i], ids[i], tables[i].shape[1]
        for b in range(B):
            start = offsets[b]
            stop = offsets[b + 1] if b + 1 < B else own.shape[0]
            if not 0 <= start <= stop <= own.shape[0]:
                return False
            sizes[b] = stop - start
            total = means[b, first : first + d]
            for k in range(d):
                total[k] = 0
            for n in range(start, stop):
                if n + AHEAD < own.shape[0]:
                    for k in range(0, d, LINE):
                        prefetch_line(table, own[n + AHEAD], k)
                if not 0 <= own[n] < table.shape[0]:
                    return False
                row = table[own[n]]
                for k in range(d):
                    total[k] += row[k]
            share = np.float32(1 / max(stop - start, 1))
            for k in range(d):
                total[k] *= share
        first += d
    return True
