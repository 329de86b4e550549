"""What compiled functions need beyond numba's own: matrix products, exponentials, parts of arrays.

Everything here writes its instructions for the compiler directly. As functions that numba compiles
they would take it some tenths of a second each, in every function that calls them.

This file and `views` import numba when they are imported; see `compiler.Intrinsic`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from crossbatch.kernels.views import (
    FLOAT,
    NUMBER,
    POINTER,
    REAL,
    array_of,
    call,
    copy,
    floats_at,
    floats_of,
    matrix_at,
    matrix_of,
    part_of,
    prefetch_line,
)

__all__ = [
    "copy",
    "exponential",
    "find_matrix_product",
    "floats_at",
    "floats_of",
    "matrix_at",
    "matrix_of",
    "of_rank",
    "part_of",
    "prefetch_line",
    "product",
    "product_t",
    "rank",
    "sigmoid",
    "t_product",
    "tanh",
]

# ---- matrix products, by the BLAS that torch itself calls ------------------------------------
# At a batch of 128 a product takes 25 µs, and calling it through Python and torch about as much
# again. `sgemm_` of torch's library is the same routine with the same number of threads.
# Arrays are float32 [rows, columns] whose rows have no gaps; there may be some between rows.

ROUTINE = "sgemm_"  # BLAS as Fortran calls it: every argument by reference, columns contiguous


def find_matrix_product() -> bool:
    """Make torch's routine known to compiled functions; False where it is hidden or another one."""
    for library in sorted(Path(torch.__file__).parent.glob("lib/*torch_cpu.*")):
        llvm.load_library_permanently(str(library))
    # Linking to a routine that is not there would end the process.
    return bool(llvm.address_of_symbol(ROUTINE))


def _matrix(builder: Any, array: Any) -> tuple[Any, Any, Any, Any]:
    """Address, rows, columns, and numbers from row to row.

    A matrix of one row may have any stride; BLAS refuses one that is shorter than the row, and
    then leaves the product undone.
    """
    rows, columns = cgutils.unpack_tuple(builder, array.shape, 2)  # type: ignore[no-untyped-call]
    stride = builder.extract_value(array.strides, 0)
    step = builder.sdiv(stride, stride.type(FLOAT))
    for least in (columns, stride.type(1)):
        step = builder.select(builder.icmp_signed("<", step, least), least, step)
    return builder.bitcast(array.data, POINTER), rows, columns, step


def _product(first_form: str, second_form: str) -> Any:
    """The product of two matrices, each as it is (N) or transposed (T)."""

    def typed(typing_context: Any, a: Any, b: Any, out: Any, keep: Any) -> Any:
        del typing_context, keep

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays = [array_of(context, builder, signature, arguments, i) for i in range(3)]
            (at_a, *shape_a, step_a), (at_b, *_, step_b), (at_out, n, m, step_out) = (
                _matrix(builder, array) for array in arrays
            )
            k = shape_a[1] if first_form == "N" else shape_a[0]
            letters = [ir.IntType(8)(ord(form)) for form in (second_form, first_form)]
            sizes = [builder.trunc(size, NUMBER) for size in (m, n, k, step_b, step_a, step_out)]
            given = [*letters, *sizes, REAL(1.0), arguments[3]]
            places = [cgutils.alloca_once_value(builder, value) for value in given]  # type: ignore[no-untyped-call]
            b_form, a_form, *at_sizes, one, kept = [builder.bitcast(p, POINTER) for p in places]
            wide, high, deep, row_b, row_a, row_out = at_sizes
            # outᵀ [m, n] = bᵀ aᵀ as Fortran sees them: every array is its own transpose there.
            given = [b_form, a_form, wide, high, deep, one, at_b, row_b, at_a, row_a, kept, at_out]
            some = builder.and_(*[builder.icmp_signed(">", size, size.type(0)) for size in (m, n)])
            with builder.if_then(some):
                call(builder, ROUTINE, ir.VoidType(), *given, row_out)
            return context.get_dummy_value()

        return types.void(a, b, out, types.float32), generate

    return intrinsic(typed)


product = _product("N", "N")  # (a, b, out, keep): out [m, n] = a [m, k] b [k, n] + keep out
product_t = _product("N", "T")  # a [m, k], b [n, k]: out [m, n] = a bᵀ + keep out
t_product = _product("T", "N")  # a [k, m], b [k, n]: out [m, n] = aᵀ b + keep out


# ---- exponentials, written so that loops over them are vectorised ----------------------------
# The compiler would call a library for `math.exp`, one number at a time.


def _of_number(build: Any, source: Any = types.float32, target: Any = types.float32) -> Any:
    """A function of one number, from what it is built of: `build(builder, x)`."""

    def typed(typing_context: Any, value: Any) -> Any:
        del typing_context, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del context, signature
            return build(builder, arguments[0])

        return target(source), generate

    return intrinsic(typed)


def _series(builder: Any, x: Any, *factors: float) -> Any:
    """A polynomial, whose factor of the highest power comes first."""
    total = REAL(factors[0])
    for factor in factors[1:]:
        total = builder.fadd(builder.fmul(total, x), REAL(factor))
    return total


def _where(builder: Any, x: Any, relation: str, limit: float, then: Any, otherwise: Any) -> Any:
    """One of two values, by how `x` compares with a limit; NaN does not."""
    return builder.select(builder.fcmp_ordered(relation, x, REAL(limit)), then, otherwise)


def _exponential(builder: Any, x: Any) -> Any:
    """e^x = 2^n e^r with n the integer next to x log2 e; e^r by its series to the sixth order."""
    bounded = _where(builder, x, "<", -88, REAL(-88), x)
    n = call(builder, "llvm.rint.f32", REAL, builder.fmul(bounded, REAL(1.4426950408889634)))
    r = builder.fsub(bounded, builder.fmul(n, REAL(0.693359375)))
    r = builder.fadd(r, builder.fmul(n, REAL(2.12194440e-4)))
    series = _series(builder, r, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1, 1)
    exponent = builder.add(builder.fptosi(n, NUMBER), NUMBER(127))
    power = builder.bitcast(builder.shl(exponent, NUMBER(23)), REAL)
    return _where(builder, bounded, "<", -87, REAL(0), builder.fmul(series, power))


def _sigmoid(builder: Any, x: Any) -> Any:
    """1 / (1 + e^−x)."""
    bounded = _where(builder, x, "<", -87, REAL(-87), x)
    e = _exponential(builder, builder.fneg(bounded))
    return builder.fdiv(REAL(1), builder.fadd(REAL(1), e))


def _tanh(builder: Any, x: Any) -> Any:
    """Tanh x; by its series where 1 − e^−2x would lose digits."""
    square = builder.fmul(x, x)
    series = _series(builder, square, 62 / 2835, -17 / 315, 2 / 15, -1 / 3)
    series = builder.fadd(builder.fmul(builder.fmul(series, square), x), x)
    size = call(builder, "llvm.fabs.f32", REAL, x)
    e = _exponential(builder, builder.fmul(REAL(-2), size))
    ratio = builder.fdiv(builder.fsub(REAL(1), e), builder.fadd(REAL(1), e))
    ratio = _where(builder, x, ">", 0, ratio, builder.fneg(ratio))
    return _where(builder, size, "<", 0.3, series, ratio)


exponential = _of_number(_exponential)  # for x ≤ 88, to two units in the last place; 0 below −87
sigmoid, tanh = _of_number(_sigmoid), _of_number(_tanh)


# A running maximum of floats is not vectorised, one of integers is.


def _flipped(builder: Any, bits: Any) -> Any:
    """With the bits of negative numbers flipped, floats are in the order of their bits."""
    negative = builder.ashr(bits, NUMBER(31))
    return builder.xor(bits, builder.and_(negative, NUMBER(2**31 - 1)))


def _rank(builder: Any, x: Any) -> Any:
    """An integer that is in the order of the floats."""
    return _flipped(builder, builder.bitcast(x, NUMBER))


def _of_rank(builder: Any, rank: Any) -> Any:
    """The float of a rank."""
    return builder.bitcast(_flipped(builder, rank), REAL)


rank = _of_number(_rank, target=types.int32)
of_rank = _of_number(_of_rank, types.int32)
