"""Gradients of the rows of an embedding table that a batch has read, added up by row.

A batch reads popular rows several times, and rows that were averaged share one gradient. So before
an optimiser moves rows, the gradients of each distinct row are added up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossbatch.kernels.compiler import Array, array, check_ids, compiled, intrinsic, np

if TYPE_CHECKING:
    from collections.abc import Sequence

SCATTER = 2_654_435_761  # an odd number near 2³²/φ: neighbours get far from each other
FEWEST_IDS = 1024  # to have room for

floats_at, copy = intrinsic("floats_at"), intrinsic("copy")


@dataclass(slots=True, eq=False)
class RowRead:
    """Rows that a forward pass took from a table.

    Attributes:
        ids: `[n]` rows of the table.
        leaf: `[m, ≥ d]` what the towers saw, a leaf of autograd's graph: its gradient is theirs.
        sizes: `[m]` how many consecutive ids each row of `leaf` is the mean of; None where every
            id has its own.
        columns: Those of `leaf` that are of this table; others are of tables read beside it.
    """

    ids: Tensor
    leaf: Tensor
    sizes: Tensor | None = None
    columns: slice = field(default_factory=lambda: slice(None))

    @property
    def gradient(self) -> Tensor | None:
        """`[m, d]` gradient of the rows or of their means; None where there is none."""
        return None if self.leaf.grad is None else self.leaf.grad[:, self.columns]


def sum_gradients(reads: Sequence[RowRead], padding_row: int | None) -> tuple[Tensor, Tensor]:
    """Distinct rows `[n]` of reads, and the sum of their gradients `[n, d]`, in plain torch."""
    ids = torch.cat([read.ids for read in reads])
    gradients = torch.cat([gradient_of_each_id(read) for read in reads])
    if padding_row is not None:
        real = (ids != padding_row).nonzero().squeeze(1)
        ids, gradients = ids[real], gradients.index_select(0, real)
    rows, where = ids.unique(return_inverse=True)
    total = gradients.new_zeros(rows.shape[0], gradients.shape[1])
    return rows, total.index_add_(0, where, gradients)


def gradient_of_each_id(read: RowRead) -> Tensor:
    """`[n, d]` gradient of each id of a read."""
    gradient = read.gradient
    assert gradient is not None
    if read.sizes is None:
        return gradient
    shares = gradient / read.sizes.clamp(min=1).unsqueeze(1)
    return shares.repeat_interleave(read.sizes, dim=0)


class RowSums:
    """Adds up the gradients of each distinct row, in memory that is kept from step to step.

    Args:
        padding_row: A row to leave out; or None.

    Attributes:
        rows: `[≥ count]` int64, the distinct rows of the last call.
        sources: `[≥ count]` int64, addresses of the sums of their gradients.
    """

    def __init__(self, padding_row: int | None) -> None:
        self.padding_row = padding_row
        self._make_room(FEWEST_IDS, 1)

    def add_up(self, reads: Sequence[RowRead], num_rows: int, dim: int) -> int:
        """The number of distinct rows of reads, after adding up their gradients.

        Args:
            reads: With gradients.
            num_rows: Rows R of the table.
            dim: Width d of the table.
        """
        num_ids = sum([read.ids.shape[0] for read in reads])
        if num_ids > len(self.rows) or self._totals.shape[1] != dim:
            self._make_room(max(2 * num_ids, FEWEST_IDS), dim)
        self._places.fill(-1)
        padding = -1 if self.padding_row is None else self.padding_row
        self._gradients = []  # `sources` point into these until the next call
        count = 0
        for read in reads:
            ids, sizes, gradient, column = _arrays(read, dim)
            self._gradients.append(gradient)
            count = _add_read(
                ids, sizes, gradient, column, padding, num_rows,
                self._places, self.rows, self.sources, self._totals, count,
            )  # fmt: skip
            if count < 0:
                raise IndexError(
                    f"ids of a read must be rows of the table, 0 to {num_rows - 1}, and as many as "
                    "its sizes say"
                )
        return count

    def totals(self, reads: Sequence[RowRead], num_rows: int, dim: int) -> tuple[Tensor, Tensor]:
        """As `sum_gradients`, but rows are in the order in which they were first read."""
        count = self.add_up(reads, num_rows, dim)
        totals = np.empty((count, dim), dtype=np.float32)
        _copy_rows(self.sources, totals)
        return torch.from_numpy(self.rows[:count].copy()), torch.from_numpy(totals)

    def _make_room(self, num_ids: int, dim: int) -> None:
        self.rows, self.sources = np.empty((2, num_ids), dtype=np.int64)
        self._totals = np.empty((num_ids, dim), dtype=np.float32)
        self._places = np.empty(2 ** (2 * num_ids - 1).bit_length(), dtype=np.int32)


def _arrays(read: RowRead, dim: int) -> tuple[Array, Array, Array, int]:
    """Ids, sizes or nothing, gradient and its first column that counts.

    Raises:
        ValueError: Unless the gradient has a row for each id, or for each size, and d columns.
    """
    check_ids(ids=read.ids)
    ids, column = array(read.ids), read.columns.start or 0
    assert read.leaf.grad is not None
    gradient = array(read.leaf.grad)
    if read.sizes is None:
        sizes, expected = np.empty(0, dtype=np.int64), len(ids)
    else:
        check_ids(sizes=read.sizes)
        sizes = array(read.sizes)
        expected = len(sizes)
    if gradient.ndim != 2 or len(gradient) != expected or gradient.shape[1] - column < dim:
        raise ValueError(
            f"the gradient of a read must be [{expected}, {dim}] or wider, got "
            f"{list(gradient.shape)} of which the first {column} columns are others"
        )
    return ids, sizes, gradient, column


@compiled
def _add_read(
    ids: Array,
    sizes: Array,
    gradient: Array,
    column: int,
    padding: int,
    num_rows: int,
    places: Array,
    rows: Array,
    sources: Array,
    totals: Array,
    count: int,
) -> int:
    """Add one read to the distinct rows and the sums of their gradients.

    Most rows are read once: their sum is the gradient where it lies, and is not copied.

    Args:
        ids: `[n]` rows of the table.
        sizes: `[m]` how many ids each row of `gradient` is of, or empty where every id has its own.
        gradient: `[m, ≥ column + d]`; where there are sizes, its columns that count are divided by
            them in place.
        column: Its first column that counts.
        padding: Row to leave out, or −1.
        num_rows: Rows of the table.
        places: Hash table of a power of two of int32, more than there are ids: where in `rows` a
            row is, −1 for nothing. It stays in the cache, which a number for each row would not.
        rows: `[≥ count + n]` int64, distinct rows so far.
        sources: `[≥ count + n]` int64, addresses of the sums of their gradients.
        totals: `[≥ count + n, d]` memory for sums of several.
        count: Number of rows so far.

    Returns:
        The number of rows; −1 for an id that is out of range, or sizes that do not add up.
    """
    d, last_bits = totals.shape[1], places.shape[0] - 1
    bag, left = -1, 0
    for n in range(ids.shape[0]):
        row = ids[n]
        while left == 0:
            bag += 1
            if bag >= gradient.shape[0]:
                return -1
            left = sizes[bag] if sizes.shape[0] else 1
            if left < 0:
                return -1
            if left > 1:
                share = np.float32(1 / left)
                for k in range(column, column + d):
                    gradient[bag, k] *= share
        left -= 1
        if not 0 <= row < num_rows:
            return -1
        if row == padding:
            continue
        source = gradient[bag, column : column + d]
        place = ((row * SCATTER) >> 16) & last_bits
        while places[place] >= 0 and rows[places[place]] != row:
            place = (place + 1) & last_bits
        slot = places[place]
        if slot < 0:
            places[place] = count
            rows[count] = row
            sources[count] = source.ctypes.data
            count += 1
        else:
            total = totals[slot]
            if sources[slot] != total.ctypes.data:
                copy(floats_at(sources[slot], d), total)
                sources[slot] = total.ctypes.data
            for k in range(d):
                total[k] += source[k]
    return count


@compiled
def _copy_rows(sources: Array, totals: Array) -> None:
    """Copy rows from addresses `[≥ n]` into `[n, d]`."""
    for n in range(totals.shape[0]):
        copy(floats_at(sources[n], totals.shape[1]), totals[n])
