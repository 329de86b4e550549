"""Steps of Adam and row-wise Adagrad over the rows of an embedding table that a batch has read.

The rows lie anywhere in tables larger than any cache, and the time goes into waiting for memory:
the compiled forms ask for rows a little before they need them, and make no temporary tensors.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from crossbatch.kernels.compiler import (
    Array,
    check_shapes,
    compiled,
    compiled_reordered,
    inlined,
    intrinsic,
    np,
    usable,
)
from crossbatch.kernels.parallel import Part, equal_parts, run_parts
from crossbatch.kernels.row_gradients import RowSums, sum_gradients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.kernels.row_gradients import RowRead

AHEAD = 6  # rows requested before they are needed
LINE = 16  # float32 values of a cache line

# Compiled code runs without the interpreter's lock, and two threads may train one table.
_ONE_AT_A_TIME = threading.Lock()

prefetch_line, floats_at = intrinsic("prefetch_line"), intrinsic("floats_at")


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
        self._sums: RowSums | None = None  # needs NumPy, which the plain forms do not
        self._tables = AdamTables()

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
        tables = self._tables.arrays(weight, first, second, touched)
        if tables is not None:
            with _ONE_AT_A_TIME:
                count, rows, sources = self._added_up(reads, weight)

                def run(part: Part) -> None:
                    some = slice(part.start, part.stop)
                    _adam(rows[some], sources[some], *tables, step, tuple(rates))

                run_parts(run, equal_parts(count, 6 * weight.shape[1]))
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
        if usable(weight, squares) and weight.is_contiguous() and squares.is_contiguous():
            with _ONE_AT_A_TIME:
                sums = self._added_up(reads, weight)
                _adagrad(*sums, weight.numpy(), squares.numpy(), lr, eps)
            return
        rows, gradient = sum_gradients(reads, self.padding_row)
        total = squares[rows] + gradient.square().mean(dim=1)
        squares[rows] = total
        weight[rows] -= lr * gradient / (total.sqrt() + eps).unsqueeze(1)

    def _added_up(self, reads: Sequence[RowRead], weight: Tensor) -> tuple[int, Array, Array]:
        """The number of distinct rows, the rows, and the addresses of their gradients."""
        self._sums = self._sums or RowSums(self.padding_row)
        return self._sums.add_up(reads, *weight.shape), self._sums.rows, self._sums.sources


class AdamTables:
    """The tables of Adam as arrays for compiled code, made anew only when the tables are others."""

    def __init__(self) -> None:
        self._known: tuple[Any, ...] = ()
        self._arrays: tuple[Array, ...] | None = None

    def arrays(
        self, weight: Tensor, first: Tensor, second: Tensor, touched: Tensor
    ) -> tuple[Array, ...] | None:
        """The arrays; None where compiled code cannot write to the tables in place.

        Raises:
            ValueError: Unless moments `[R, d]` and last steps `[R]` int32 fit the weights `[R, d]`.
        """
        tables = (weight, first, second, touched)
        if not usable():
            return _adam_arrays(*tables)
        # An array keeps its memory alive: no other table can have got the same address meanwhile.
        known = tuple([(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in tables])
        if known != self._known:
            self._known, self._arrays = known, _adam_arrays(*tables)
        return self._arrays


def _adam_arrays(
    weight: Tensor, first: Tensor, second: Tensor, touched: Tensor
) -> tuple[Array, ...] | None:
    shape = weight.shape
    alike = first.shape == shape == second.shape and touched.shape == shape[:1]
    if not alike or len(shape) != 2 or touched.dtype != torch.int32:
        raise ValueError(
            f"weight, first and second must be [R, d] and touched [R] int32, got {list(shape)}, "
            f"{list(first.shape)}, {list(second.shape)}, {list(touched.shape)} {touched.dtype}"
        )
    tables = (weight, first, second, touched)
    if not usable(weight, first, second) or not all(table.is_contiguous() for table in tables):
        return None
    return tuple([table.numpy() for table in tables])


@compiled
def _adam(
    rows: Array,
    sources: Array,
    w: Array,
    m: Array,
    v: Array,
    touched: Array,
    step: int,
    rates: Any,
) -> None:
    """One Adam step of distinct rows by the gradients at the addresses `sources`."""
    for n in range(rows.shape[0]):
        if n + AHEAD < rows.shape[0]:
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
