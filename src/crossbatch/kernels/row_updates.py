"""Updates of the rows of an embedding table that a batch has read, by Adam or row-wise Adagrad.

A batch reads popular rows several times, and rows that were summed share one gradient. So a step
first adds up the gradients of each distinct row, then moves those rows. The rows lie anywhere in
tables larger than any cache, and the time goes into waiting for memory: the compiled forms ask for
rows a little before they need them, and make no temporary tensors.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    Array,
    array,
    check_ids,
    check_shapes,
    compiled,
    compiled_reordered,
    inlined,
    intrinsic,
    np,
    usable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

AHEAD = 6  # rows requested before they are needed
LINE = 16  # float32 values of a cache line
SCATTER = 2_654_435_761  # an odd number near 2³²/φ: neighbours get far from each other
FEWEST_IDS = 1024  # to have room for

# Compiled code runs without the interpreter's lock, and two threads may train one table.
_ONE_AT_A_TIME = threading.Lock()

prefetch_line, floats_at = intrinsic("prefetch_line"), intrinsic("floats_at")
copy = intrinsic("copy")


@dataclass(frozen=True, slots=True, eq=False)
class RowRead:
    """Rows that a forward pass took from a table.

    Attributes:
        ids: `[n]` rows of the table.
        leaf: `[m, ≥ d]` what the towers saw, a leaf of autograd's graph: its gradient is theirs.
        sizes: `[m]` how many consecutive ids each row of `leaf` is the sum of; None where every
            id has its own.
        columns: Those of `leaf` that are of this table; others are of tables read beside it.
    """

    ids: Tensor
    leaf: Tensor
    sizes: Tensor | None = None
    columns: slice = field(default_factory=lambda: slice(None))

    @property
    def gradient(self) -> Tensor | None:
        """`[m, d]` gradient of the rows or of their sums; None where there is none."""
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
    return gradient if read.sizes is None else gradient.repeat_interleave(read.sizes, dim=0)


class AdamRates(NamedTuple):
    """Numbers of one Adam step. Each is rounded once: 1 − β2 of a rounded β2 is off by 1e-5."""

    lr: float  # lr / (1 − β1^t)
    inertia: float  # 1 − β1
    beta2: float
    renewal: float  # 1 − β2
    scale: float  # 1 / √(1 − β2^t)
    eps: float
    shrink: float  # 1 − lr · weight decay


class RowUpdates:
    """Steps of optimisers over the rows of one table, and the memory that they use.

    Args:
        padding_row: A row that is never moved; or None.
    """

    def __init__(self, padding_row: int | None = None) -> None:
        self.padding_row = padding_row
        self._room = 0

    def adam(
        self,
        reads: Sequence[RowRead],
        weight: Tensor,
        first: Tensor,
        second: Tensor,
        touched: Tensor,
        step: int,
        rates: AdamRates,
    ) -> None:
        """One step of Adam for the rows that were read, in place.

        Args:
            reads: With gradients.
            weight: `[R, d]`.
            first: `[R, d]` first moments.
            second: `[R, d]` second moments.
            touched: `[R]` int32 last step of each row, set to `step`.
            step: Number of this step.
            rates: Of this step.
        """
        check_adam_tables(weight, first, second, touched)
        if _compilable(weight, first, second, touched):
            with _ONE_AT_A_TIME:
                count = self._add_up(reads, *weight.shape)
                tables = [tensor.numpy() for tensor in (weight, first, second, touched)]
                _adam(count, self._rows, self._sources, *tables, step, tuple(rates))
            return
        rows, gradient = sum_gradients(reads, self.padding_row)
        mean = first.index_select(0, rows).lerp_(gradient, rates.inertia)
        square = second.index_select(0, rows).mul_(rates.beta2)
        square.addcmul_(gradient, gradient, value=rates.renewal)
        first.index_copy_(0, rows, mean)
        second.index_copy_(0, rows, square)
        root = square.sqrt_().mul_(rates.scale).add_(rates.eps)
        values = weight.index_select(0, rows).mul_(rates.shrink)
        weight.index_copy_(0, rows, values.addcdiv_(mean, root, value=-rates.lr))
        touched[rows] = step

    def adagrad(
        self, reads: Sequence[RowRead], weight: Tensor, squares: Tensor, lr: float, eps: float
    ) -> None:
        """One step of row-wise Adagrad for the rows that were read, in place.

        Args:
            reads: With gradients.
            weight: `[R, d]`.
            squares: `[R]` sums of mean squared gradients.
            lr: Learning rate.
            eps: Added to the root.
        """
        check_shapes(squares=(squares, (len(weight),)))
        if _compilable(weight, squares):
            with _ONE_AT_A_TIME:
                count = self._add_up(reads, *weight.shape)
                tables = weight.numpy(), squares.numpy()
                _adagrad(count, self._rows, self._sources, *tables, lr, eps)
            return
        rows, gradient = sum_gradients(reads, self.padding_row)
        total = squares[rows] + gradient.square().mean(dim=1)
        squares[rows] = total
        weight[rows] -= lr * gradient / (total.sqrt() + eps).unsqueeze(1)

    def _add_up(self, reads: Sequence[RowRead], num_rows: int, dim: int) -> int:
        """Number of distinct rows, after adding up their gradients in memory that is kept."""
        num_ids = sum([read.ids.shape[0] for read in reads])
        if num_ids > self._room or self._totals.shape[1] != dim:
            self._make_room(max(2 * num_ids, FEWEST_IDS), dim)
        self._places.fill(-1)
        # `_sources` point into these until the next call.
        self._gradients = [array(read.leaf.grad) for read in reads if read.leaf.grad is not None]
        padding = -1 if self.padding_row is None else self.padding_row
        none, count = np.empty(0, dtype=np.int64), 0
        for read, gradient in zip(reads, self._gradients, strict=True):
            sizes = none if read.sizes is None else array(read.sizes)
            column = read.columns.start or 0
            _check_read(read, num_rows=len(gradient), width=gradient.shape[1] - column, dim=dim)
            count = _add_read(
                array(read.ids), sizes, gradient, column, padding, num_rows,
                self._places, self._rows, self._sources, self._totals, count,
            )  # fmt: skip
            if count < 0:
                raise IndexError(
                    f"ids of a read must be rows of the table, 0 to {num_rows - 1}, and as many as "
                    "its sizes say"
                )
        return count

    def _make_room(self, num_ids: int, dim: int) -> None:
        self._room = num_ids
        self._rows, self._sources = np.empty((2, num_ids), dtype=np.int64)
        self._totals = np.empty((num_ids, dim), dtype=np.float32)
        self._places = np.empty(2 ** (2 * num_ids - 1).bit_length(), dtype=np.int32)


def check_adam_tables(weight: Tensor, first: Tensor, second: Tensor, touched: Tensor) -> None:
    """Raise `ValueError` unless moments `[R, d]` and last steps `[R]` int32 fit the weights."""
    shape = tuple(weight.shape)
    check_shapes(first=(first, shape), second=(second, shape), touched=(touched, shape[:1]))
    if len(shape) != 2 or touched.dtype != torch.int32:
        raise ValueError(
            f"weight must be [R, d] and touched int32, got {list(shape)} and {touched.dtype}"
        )


def _check_read(read: RowRead, *, num_rows: int, width: int, dim: int) -> None:
    """Raise `ValueError` unless a gradient `[num_rows, width]` can be that of a read."""
    check_ids(ids=read.ids)
    if read.sizes is not None:
        check_ids(sizes=read.sizes)
    sources = read.ids if read.sizes is None else read.sizes
    if len(sources) != num_rows or width < dim:
        raise ValueError(
            f"the gradient of a read must be [{len(sources)}, {dim}] or wider, got "
            f"[{num_rows}, {width}]"
        )


def _compilable(*tables: Tensor) -> bool:
    """Whether compiled code can write to these tables in place."""
    floats = [table for table in tables if table.dtype != torch.int32]
    whole = all(table.is_contiguous() and table.is_cpu for table in tables)
    return whole and usable(*floats)


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
def _adam(
    count: int,
    rows: Array,
    sources: Array,
    w: Array,
    m: Array,
    v: Array,
    touched: Array,
    step: int,
    rates: Any,
) -> None:
    """One Adam step of `count` distinct rows by the gradients at the addresses `sources`."""
    for n in range(count):
        if n + AHEAD < count:
            prefetch_rows(rows[n + AHEAD], w, m, v)
        row = rows[n]
        touched[row] = step
        _move(w[row], m[row], v[row], floats_at(sources[n], w.shape[1]), rates)


@compiled
def prefetch_rows(row: int, w: Array, m: Array, v: Array) -> None:
    """Request a row of three tables `[R, d]`."""
    for k in range(0, w.shape[1], LINE):
        prefetch_line(w, row, k)
        prefetch_line(m, row, k)
        prefetch_line(v, row, k)


# Inlined: a call for every row would keep the next row's memory waiting.
@inlined
def _move(weight: Array, first: Array, second: Array, g: Array, rates: Any) -> None:
    """One Adam step of numbers `[k]` and their moments by a gradient; see `AdamRates`."""
    lr, inertia = np.float32(rates[0]), np.float32(rates[1])
    beta2, renewal = np.float32(rates[2]), np.float32(rates[3])
    scale, eps, shrink = np.float32(rates[4]), np.float32(rates[5]), np.float32(rates[6])
    for k in range(g.shape[0]):
        # What is stored is not read again, or long loops would take twice the time.
        mean = first[k] + inertia * (g[k] - first[k])
        square = beta2 * second[k] + renewal * g[k] * g[k]
        first[k], second[k] = mean, square
        weight[k] = shrink * weight[k] - lr * mean / (np.sqrt(square) * scale + eps)


@compiled_reordered
def _adagrad(
    count: int, rows: Array, sources: Array, w: Array, squares: Array, lr: float, eps: float
) -> None:
    """One step of row-wise Adagrad of `count` distinct rows."""
    sums, d = squares.reshape(1, -1), w.shape[1]
    for n in range(count):
        if n + AHEAD < count:
            for k in range(0, d, LINE):
                prefetch_line(w, rows[n + AHEAD], k)
            prefetch_line(sums, 0, rows[n + AHEAD])
        row, g = rows[n], floats_at(sources[n], d)
        square = np.float32(0)
        for k in range(d):
            square += g[k] * g[k]
        squares[row] += square / np.float32(d)
        rate, weight = np.float32(lr) / (np.sqrt(squares[row]) + np.float32(eps)), w[row]
        for k in range(d):
            weight[k] -= rate * g[k]
