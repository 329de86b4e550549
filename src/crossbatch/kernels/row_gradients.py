"""Gradients of the rows of an embedding table that a batch has read, added up by row.

A batch reads popular rows several times, and rows that were averaged share one gradient. So before
an optimiser moves rows, the gradients of each distinct row are added up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossbatch.kernels.compiler import Array, array, check_ids, compiled, inlined, intrinsic, np
from crossbatch.kernels.parallel import Part, equal_parts, run_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

_Arrays = tuple[Array, Array, Array, int]

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
        arrays = [_arrays(read, dim) for read in reads]
        self._gradients = [each[2] for each in arrays]  # `sources` point into these until next time
        for ids, sizes, gradient, column in arrays:
            if len(sizes) and not _divide(sizes, gradient, column, dim, len(ids)):
                raise IndexError(f"sizes of a read must be as many ids as it has: {len(ids)}")
        parts = equal_parts(num_ids, 2 * dim)
        if len(parts) == 1:
            room, places = slice(0, num_ids), self._places[: 2 * _power_of_two(num_ids)]
            return self._add_part(arrays, num_rows, places, room, (0, 1))
        return self._add_parts(arrays, num_rows, parts)

    def _add_parts(self, arrays: Sequence[_Arrays], num_rows: int, parts: Sequence[Part]) -> int:
        """`add_up` where each thread has the rows that their number gives it."""
        sizes = np.zeros(len(parts), dtype=np.int64)
        for ids, *_ in arrays:
            _count_owned(ids, sizes)
        rooms, places, counts = list[slice](), list[Array](), [0] * len(parts)
        at = start = 0
        for size in sizes.tolist():
            rooms.append(slice(start, start + size))
            places.append(self._places[at : at + 2 * _power_of_two(size)])
            start, at = start + size, at + len(places[-1])

        def run(part: Part) -> None:
            i = part.number
            found = self._add_part(arrays, num_rows, places[i], rooms[i], (i, len(parts)))
            counts[i] = found

        run_parts(run, parts)
        total = counts[0]
        for room, count in zip(rooms[1:], counts[1:], strict=True):
            some = slice(room.start, room.start + count)
            for each in (self.rows, self.sources):
                each[total : total + count] = each[some]
            total += count
        return total

    def _add_part(
        self,
        arrays: Sequence[_Arrays],
        num_rows: int,
        places: Array,
        room: slice,
        part: tuple[int, int],
    ) -> int:
        """Add up the rows of one part in its room; their number."""
        places.fill(-1)
        padding = -1 if self.padding_row is None else self.padding_row
        rows, sources, totals = self.rows[room], self.sources[room], self._totals[room]
        count = 0
        for ids, sizes, gradient, column in arrays:
            count = _add_read(
                ids, sizes, gradient, column, padding, num_rows,
                places, rows, sources, totals, count, *part,
            )  # fmt: skip
            if count < 0:
                raise IndexError(f"ids of a read must be rows of the table, 0 to {num_rows - 1}")
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
        # Of several parts, each has a table of a power of two.
        self._places = np.empty(4 * _power_of_two(num_ids), dtype=np.int32)


def _power_of_two(least: int) -> int:
    """The first power of two that is not below `least`."""
    return 1 << max(least - 1, 0).bit_length()


def _arrays(read: RowRead, dim: int) -> _Arrays:
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
def _divide(sizes: Array, gradient: Array, column: int, d: int, num_ids: int) -> bool:
    """Divide gradients of means by their `sizes`, in place; False if these are not `num_ids`."""
    total = 0
    for bag in range(sizes.shape[0]):
        if sizes[bag] < 0:
            return False
        total += sizes[bag]
        if sizes[bag] > 1:
            share = np.float32(1 / sizes[bag])
            for k in range(column, column + d):
                gradient[bag, k] *= share
    return total == num_ids


@inlined
def _owner(row: int, parts: int) -> int:
    """Which of some parts a row belongs to."""
    return (((row * SCATTER) >> 8 & 255) * parts) >> 8


@compiled
def _count_owned(ids: Array, sizes: Array) -> None:
    """Add up how many ids `[n]` belong to each of the parts."""
    for n in range(ids.shape[0]):
        sizes[_owner(ids[n], sizes.shape[0])] += 1


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
    part: int,
    parts: int,
) -> int:
    """Add one read to the distinct rows of a part and the sums of their gradients.

    Most rows are read once: their sum is the gradient where it lies, and is not copied.

    Args:
        ids: `[n]` rows of the table.
        sizes: `[m]` how many ids each row of `gradient` is of, n in all, or empty where every id
            has its own.
        gradient: `[m, ≥ column + d]`.
        column: Its first column that counts.
        padding: Row to leave out, or −1.
        num_rows: Rows of the table.
        places: Hash table of a power of two of int32, more than there are ids: where in `rows` a
            row is, −1 for nothing. It stays in the cache, which a number for each row would not.
        rows: `[≥ count + n]` int64, distinct rows so far.
        sources: `[≥ count + n]` int64, addresses of the sums of their gradients.
        totals: `[≥ count + n, d]` memory for sums of several.
        count: Number of rows so far.
        part: Whose rows to add.
        parts: Of how many.

    Returns:
        The number of rows; −1 for an id that is out of range.
    """
    d, last_bits = totals.shape[1], places.shape[0] - 1
    bag, end = -1, 0
    for n in range(ids.shape[0]):
        row = ids[n]
        while n >= end:
            bag += 1
            end += sizes[bag] if sizes.shape[0] else 1
        if not 0 <= row < num_rows:
            return -1
        if row == padding or (parts > 1 and _owner(row, parts) != part):
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
