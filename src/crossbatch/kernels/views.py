"""What compiled functions need to get at memory: parts of arrays, copies of rows, prefetching.

As `intrinsics`, which has these functions too, this writes its instructions for the compiler. For a
slice numba compiles the checks of Python's rules at three times the cost; nothing is checked here.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

NUMBER, REAL, POINTER = ir.IntType(32), ir.FloatType(), cgutils.voidptr_t
FLOAT = 4  # bytes


def array_of(context: Any, builder: Any, signature: Any, arguments: Any, position: int) -> Any:
    """An argument that is an array, with its `data`, `shape` and `strides`."""
    kind = signature.args[position]
    return context.make_array(kind)(context, builder, arguments[position])


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call a function by the name that it is linked by."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(function, arguments)


TO_WRITE, KEEP, DATA = NUMBER(1), NUMBER(3), NUMBER(1)


def _line_of(typing_context: Any, table: Any, row: Any, column: Any) -> Any:
    """Prefetch the cache line of one element of `table` `[R, d]`, to be written to soon."""
    del typing_context, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = cgutils.get_item_pointer(  # type: ignore[no-untyped-call]
            context,
            builder,
            signature.args[0],
            array_of(context, builder, signature, arguments, 0),
            list(arguments[1:]),
        )
        line = builder.bitcast(place, POINTER)
        call(builder, "llvm.prefetch.p0", ir.VoidType(), line, TO_WRITE, KEEP, DATA)
        return context.get_dummy_value()

    return types.void(table, types.intp, types.intp), generate


def _copied(typing_context: Any, source: Any, target: Any) -> Any:
    """Copy numbers `[d]` to a place `[d]` of the same type, both without gaps.

    A loop would be compiled to a copy of single numbers, because the two might overlap.
    """
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        read, written = (array_of(context, builder, signature, arguments, i) for i in range(2))
        size = builder.mul(builder.extract_value(read.shape, 0), read.itemsize)
        places = [builder.bitcast(array.data, POINTER) for array in (written, read)]
        call(builder, "memcpy", POINTER, *places, size)
        return context.get_dummy_value()

    return types.void(source, target), generate


def _made(context: Any, builder: Any, kind: Any, address: Any, shape: Any, step: Any = None) -> Any:
    """An array of float32 of memory that the caller keeps alive; `step` from row to row."""
    width = ir.IntType(64)(FLOAT)
    array = context.make_array(kind)(context, builder)
    populate_array(  # type: ignore[no-untyped-call]
        array,
        data=builder.inttoptr(address, array.data.type),
        shape=shape,
        strides=[width] if step is None else [builder.mul(step, width), width],
        itemsize=width,
        meminfo=None,
    )
    return array._getvalue()


def _inside(builder: Any, array: Any, *distances: Any) -> Any:
    """The address of the number of an array that is so many numbers from the first."""
    address = builder.ptrtoint(array.data, ir.IntType(64))
    for distance in distances:
        address = builder.add(address, builder.mul(distance, distance.type(FLOAT)))
    return address


ROW: Any = types.Array(types.float32, 1, "C")
ROWS: Any = types.Array(types.float32, 2, "C")
SOME: Any = types.Array(types.float32, 2, "A")


def _floats_at(typing_context: Any, address: Any, size: Any) -> Any:
    """`size` numbers at an address."""
    del typing_context, address, size

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        return _made(context, builder, ROW, arguments[0], arguments[1:])

    return ROW(types.intp, types.intp), generate


def _matrix_at(typing_context: Any, address: Any, rows: Any, columns: Any) -> Any:
    """`[rows, columns]` at an address."""
    del typing_context, address, rows, columns

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        return _made(context, builder, ROWS, arguments[0], arguments[1:], arguments[2])

    return ROWS(*[types.intp] * 3), generate


def _floats_of(typing_context: Any, source: Any, first: Any, size: Any) -> Any:
    """`size` numbers of a row, from number `first` on."""
    del typing_context, first, size

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = array_of(context, builder, signature, arguments, 0)
        address = _inside(builder, array, arguments[1])
        return _made(context, builder, ROW, address, arguments[2:])

    return ROW(source, types.intp, types.intp), generate


def _matrix_of(typing_context: Any, source: Any, first: Any, rows: Any, columns: Any) -> Any:
    """`[rows, columns]` of the numbers of a row, from number `first` on."""
    del typing_context, first, rows, columns

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = array_of(context, builder, signature, arguments, 0)
        address = _inside(builder, array, arguments[1])
        return _made(context, builder, ROWS, address, arguments[2:], arguments[3])

    return ROWS(source, *[types.intp] * 3), generate


def _part_of(typing_context: Any, source: Any, top: Any, left: Any, rows: Any, columns: Any) -> Any:
    """`[rows, columns]` of a matrix, from a row and a column on."""
    del typing_context, top, left, rows, columns

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = array_of(context, builder, signature, arguments, 0)
        stride = builder.extract_value(array.strides, 0)
        step = builder.sdiv(stride, stride.type(FLOAT))
        address = _inside(builder, array, builder.mul(arguments[1], step), arguments[2])
        return _made(context, builder, SOME, address, arguments[3:], step)

    return SOME(source, *[types.intp] * 4), generate


prefetch_line: Any = intrinsic(_line_of)
copy: Any = intrinsic(_copied)
floats_at: Any = intrinsic(_floats_at)
matrix_at: Any = intrinsic(_matrix_at)
floats_of: Any = intrinsic(_floats_of)
matrix_of: Any = intrinsic(_matrix_of)
part_of: Any = intrinsic(_part_of)
