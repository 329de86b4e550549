"""What compiled functions need beyond numba's own: matrix products, exponentials, prefetching.

This is the one file that imports numba when it is imported; see `compiler.Intrinsic`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
import torch
from llvmlite import ir
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

Array = Any

# ---- matrix products, by the BLAS that torch itself calls ------------------------------------
# At a batch of 128 a product takes 25 µs, and calling it through Python and torch about as much
# again. `sgemm_` of torch's library is the same routine with the same number of threads.
# Arrays are float32 [rows, columns] whose rows have no gaps; there may be some between rows.

ROUTINE = "sgemm_"  # BLAS as Fortran calls it: every argument by reference, columns contiguous
FLOAT = 4  # bytes
# Integers of Python would be constants to numba, which would compile `_multiply` for each pair.
NORMAL, TRANSPOSED = np.int64(ord("N")), np.int64(ord("T"))
_sgemm: Any = types.ExternalFunction(ROUTINE, types.void(*[types.uintp] * 13))


def find_matrix_product() -> bool:
    """Make torch's routine known to compiled functions; False where it is hidden or another one."""
    for library in sorted(Path(torch.__file__).parent.glob("lib/*torch_cpu.*")):
        llvm.load_library_permanently(str(library))
    # Linking to a routine that is not there would end the process.
    return bool(llvm.address_of_symbol(ROUTINE))


@njit(cache=True, nogil=True)
def _matrix(values: Array) -> tuple[int, int]:
    """Address of `[rows, columns]`, and numbers from row to row.

    A matrix of one row may have any stride; BLAS refuses one that is shorter than the row, and
    then leaves the product undone.
    """
    return values.ctypes.data, max(values.strides[0] // FLOAT, values.shape[1], 1)


@njit(cache=True, nogil=True)
def product(a: Array, b: Array, out: Array, keep: float) -> None:
    """Out `[m, n]` = a `[m, k]` b `[k, n]`, plus `keep` times what it held."""
    m, n, k = b.shape[1], a.shape[0], a.shape[1]
    _multiply(_matrix(b), NORMAL, _matrix(a), NORMAL, m, n, k, _matrix(out), keep)


@njit(cache=True, nogil=True)
def product_t(a: Array, b: Array, out: Array, keep: float) -> None:
    """Out `[m, n]` = a `[m, k]` bᵀ, b `[n, k]`, plus `keep` times what it held."""
    m, n, k = b.shape[0], a.shape[0], a.shape[1]
    _multiply(_matrix(b), TRANSPOSED, _matrix(a), NORMAL, m, n, k, _matrix(out), keep)


@njit(cache=True, nogil=True)
def t_product(a: Array, b: Array, out: Array, keep: float) -> None:
    """Out `[m, n]` = aᵀ b, a `[k, m]`, b `[k, n]`, plus `keep` times what it held."""
    m, n, k = b.shape[1], a.shape[1], a.shape[0]
    _multiply(_matrix(b), NORMAL, _matrix(a), TRANSPOSED, m, n, k, _matrix(out), keep)


@njit(cache=True, nogil=True)
def _multiply(
    left: tuple[int, int],
    form: Any,
    right: tuple[int, int],
    other: Any,
    m: int,
    n: int,
    k: int,
    out: tuple[int, int],
    keep: float,
) -> None:
    """outᵀ `[m, n]` = left right as Fortran sees them: every array is its own transpose there.

    Arrays are given as address and numbers from row to row, so that this is compiled only once.
    """
    if m == 0 or n == 0:
        return
    forms = np.empty(2, dtype=np.uint8)
    forms[0], forms[1] = form, other
    factors = np.empty(2, dtype=np.float32)
    factors[0], factors[1] = 1, keep
    sizes = np.empty(6, dtype=np.int32)
    sizes[0], sizes[1], sizes[2] = m, n, k
    sizes[3], sizes[4], sizes[5] = left[1], right[1], out[1]
    form_at, factor_at, size_at = forms.ctypes.data, factors.ctypes.data, sizes.ctypes.data
    _sgemm(
        form_at, form_at + 1, size_at, size_at + 4, size_at + 8, factor_at,
        left[0], size_at + 12, right[0], size_at + 16,
        factor_at + FLOAT, out[0], size_at + 20,
    )  # fmt: skip


# ---- exponentials, written so that loops over them are vectorised ----------------------------
# The compiler would call a library for `math.exp`, one number at a time.


def _reinterpreted(source: Any, target: Any) -> Any:
    """A function of a number that keeps its bits and changes its type."""

    def typed(typing_context: Any, value: Any) -> Any:
        del typing_context, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(typed)


bits_as_float = _reinterpreted(types.int32, types.float32)
float_as_bits = _reinterpreted(types.float32, types.int32)


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def exponential(x: np.float32) -> np.float32:
    """e^x for x ≤ 88, to two units in the last place; 0 below −87.

    e^x = 2^n e^r with n the nearest integer to x log2 e; e^r by its series to the sixth order.
    """
    bounded = np.float32(-88) if x < np.float32(-88) else x  # NaN is not below
    n = np.float32(np.rint(bounded * np.float32(1.4426950408889634)))
    r = bounded - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    series = np.float32(1 / 720)
    series = series * r + np.float32(1 / 120)
    series = series * r + np.float32(1 / 24)
    series = series * r + np.float32(1 / 6)
    series = series * r + np.float32(0.5)
    series = series * r + np.float32(1)
    series = series * r + np.float32(1)
    value = series * bits_as_float((np.int32(n) + np.int32(127)) << np.int32(23))
    return np.float32(0) if bounded < np.float32(-87) else np.float32(value)


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def sigmoid(x: np.float32) -> np.float32:
    """1 / (1 + e^−x)."""
    bounded = np.float32(-87) if x < np.float32(-87) else x
    return np.float32(1) / (np.float32(1) + exponential(-bounded))


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def tanh(x: np.float32) -> np.float32:
    """Tanh x; by its series where 1 − e^−2x would lose digits."""
    square = x * x
    series = np.float32(62 / 2835)
    series = series * square - np.float32(17 / 315)
    series = series * square + np.float32(2 / 15)
    series = series * square - np.float32(1 / 3)
    series = series * square * x + x
    size = abs(x)
    e = exponential(np.float32(-2) * size)
    ratio = (np.float32(1) - e) / (np.float32(1) + e)
    ratio = ratio if x > np.float32(0) else -ratio
    return series if size < np.float32(0.3) else ratio


# ---- rows of large tables: requested early, copied at once ------------------------------------

NUMBER = ir.IntType(32)
TO_WRITE, KEEP, DATA = NUMBER(1), NUMBER(3), NUMBER(1)


def _line_of(typing_context: Any, table: Any, row: Any, column: Any) -> Any:
    """Prefetch the cache line of one element of `table` `[R, d]`, to be written to soon."""
    del typing_context, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = cgutils.get_item_pointer(  # type: ignore[no-untyped-call]
            context, builder, signature.args[0], made, list(arguments[1:])
        )
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, NUMBER, NUMBER, NUMBER])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        builder.call(prefetch, [builder.bitcast(place, cgutils.voidptr_t), TO_WRITE, KEEP, DATA])
        return context.get_dummy_value()

    return types.void(table, types.intp, types.intp), generate


prefetch_line: Any = intrinsic(_line_of)


def _pointer_to(typing_context: Any, address: Any) -> Any:
    """An address as a pointer."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


_pointer: Any = intrinsic(_pointer_to)


@njit(inline="always", cache=True, nogil=True)
def floats_at(address: Any, size: Any) -> Any:
    """`size` float32 numbers at an address, whose array the caller keeps alive."""
    return carray(_pointer(address), (size,), np.float32)


@njit(inline="always", cache=True, nogil=True)
def matrix_at(address: Any, rows: Any, columns: Any) -> Any:
    """Float32 `[rows, columns]` at an address, whose array the caller keeps alive."""
    return carray(_pointer(address), (rows, columns), np.float32)


_memcpy: Any = types.ExternalFunction("memcpy", types.uintp(*[types.uintp] * 3))


@njit(cache=True, nogil=True)
def copy(source: Any, target: Any) -> None:
    """Copy numbers `[d]` to a place `[d]` of the same type, both without gaps.

    A loop would be compiled to a copy of single numbers, because the two might overlap.
    """
    _memcpy(target.ctypes.data, source.ctypes.data, source.shape[0] * source.itemsize)
