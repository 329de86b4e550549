"""Rows of large tables inside compiled functions: asked for early, copied at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

NUMBER = ir.IntType(32)
TO_WRITE, KEEP, DATA = NUMBER(1), NUMBER(3), NUMBER(1)


def _line_of(typing_context: Any, table: Any, row: Any, column: Any) -> Any:
    """The cache line of one element of `table` `[R, d]`, to be written to soon."""
    del typing_context, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = cgutils.get_item_pointer(  # type: ignore[no-untyped-call]
            context, builder, signature.args[0], array, list(arguments[1:])
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
    """`size` float32 numbers at an address, whose array somebody else keeps."""
    return carray(_pointer(address), (size,), np.float32)


_memcpy: Any = types.ExternalFunction("memcpy", types.uintp(*[types.uintp] * 3))


@njit(cache=True, nogil=True)
def copy(source: Any, target: Any) -> None:
    """Copy numbers `[d]` to a place `[d]` of the same type, both without gaps.

    A loop would be compiled to a copy of single numbers, for all the compiler knows of the two.
    """
    _memcpy(target.ctypes.data, source.ctypes.data, source.shape[0] * source.itemsize)
