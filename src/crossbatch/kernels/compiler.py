"""`compiled`: functions that numba compiles when they are first called, where it is installed.

    @compiled
    def total(values):
        ...

Inside them, arrays are filled by loops: for `row[:] = 0` numba compiles the texts of its own
errors, which takes seconds.

Importing a file of such functions imports neither numba nor NumPy, so that an operation and its
plain torch definition can stand in one file that works with torch alone.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

np: Any = None  # where there is torch alone, compiled functions are never called
if find_spec("numpy") is not None:
    np = import_module("numpy")

Array = Any  # NumPy arrays, in the signatures of compiled functions
HAS_NUMBA = find_spec("numba") is not None and np is not None

_switched_off = False


class Compiled:
    """A function that is compiled at its first call, and whose machine code is kept on disk.

    Args:
        function: In the subset of Python that numba compiles. Other compiled functions of its
            module are called by their names.
        options: Further options of `numba.njit`, such as `fastmath`.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.function, self.options = function, options
        self.__doc__ = function.__doc__
        self._has_run = False

    def __call__(self, *arguments: Any) -> Any:
        """Compile if need be, and run."""
        if self._has_run:
            return self.called(*arguments)
        with _garbage_kept():
            found = _with_room_for_frames(self, arguments)
        self._has_run = True
        return found

    @cached_property
    def called(self) -> Any:
        """What numba made of the function, to be called from Python."""
        return self._compiled(cache=True)

    @cached_property
    def resolved(self) -> Any:
        """What numba made of the function, as a part of others.

        It is kept on disk with each of these, and needs nothing that Python would call it by.
        """
        return self._compiled(no_cpython_wrapper=True)

    def _compiled(self, **options: Any) -> Any:
        njit: Any = import_module("numba").njit
        # numba must find its own kind of function behind the names that this one calls.
        names = self.function.__globals__
        called = [name for name in self.function.__code__.co_names if name in names]
        parts = {
            name: names[name].resolved
            for name in called
            if isinstance(names[name], Compiled | Intrinsic)
        }
        function = FunctionType(
            self.function.__code__,
            names | parts,
            self.function.__name__,
            self.function.__defaults__,
        )
        options = self.options | options
        return njit(error_model="numpy", nogil=True, no_cfunc_wrapper=True, **options)(function)


def _with_room_for_frames(function: Compiled, arguments: Sequence[Any]) -> Any:
    """Run a function."""
    return function.called(*arguments)


# CPython keeps the frames of calls in chunks of 16 KB. Where a loop calls functions across the end
# of a chunk, each call maps a new one and unmaps it; in the compiler's loops that has taken half a
# second. A frame of this size has a chunk made with as much room again for the frames that follow.
_with_room_for_frames.__code__ = _with_room_for_frames.__code__.replace(co_stacksize=1 << 16)


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Without Python's search for garbage, which is a tenth of the time that compiling takes."""
    searches = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:
            # What is new counts as old: it will be searched with everything else, not at once.
            gc.freeze()
            gc.unfreeze()
        if searches:
            gc.enable()


class Intrinsic:
    """A function of `kernels.intrinsics`, which imports numba: found when it is first needed."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def resolved(self) -> Any:
        """The function itself."""
        return getattr(import_module("crossbatch.kernels.intrinsics"), self.name)


def intrinsic(name: str) -> Any:
    """A function of `kernels.intrinsics`, for compiled functions to call."""
    return Intrinsic(name)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call; multiplications and additions may be fused."""
    return Compiled(function, fastmath={"contract"})


def compiled_reordered(function: Callable[..., Any]) -> Any:
    """As `compiled`; sums may also be taken in another order, which lets loops be vectorised."""
    return Compiled(function, fastmath={"contract", "reassoc"})


def inlined(function: Callable[..., Any]) -> Any:
    """As `compiled`, as a part of each function that calls it."""
    return Compiled(function, fastmath={"contract"}, inline="always")


@cache
def available() -> bool:
    """Whether numba is installed and compiled functions can call torch's matrix products."""
    if not HAS_NUMBA:
        return False
    found: bool = import_module("crossbatch.kernels.intrinsics").find_matrix_product()
    return found


def usable(*numbers: Tensor, ids: Sequence[Tensor] = ()) -> bool:
    """Whether a compiled function can work on these tensors.

    Under `torch.compile`, `torch.export` and autocast the plain definition is what is traced.

    Args:
        numbers: Must be float32, on a CPU.
        ids: Must be int64, on a CPU.
    """
    if _switched_off or not HAS_NUMBA or not available():
        return False
    for tensor in numbers:
        if not tensor.is_cpu or tensor.dtype != torch.float32:
            return False
    for tensor in ids:
        if not tensor.is_cpu or tensor.dtype != torch.int64:
            return False
    return not (torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"))


@contextmanager
def switched_off() -> Iterator[None]:
    """Use the plain torch definitions inside, as if numba were not installed."""
    global _switched_off
    before, _switched_off = _switched_off, True
    try:
        yield
    finally:
        _switched_off = before


def array(tensor: Tensor) -> Array:
    """The tensor as a NumPy array without gaps and aligned: its own memory, or else a copy."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():  # a view that stands for the negative of its memory
        tensor = tensor.resolve_neg()
    found = (tensor if tensor.is_contiguous() else tensor.contiguous()).numpy()
    return found if found.flags.aligned else found.copy()


def check_ids(**ids: Tensor) -> None:
    """Raise `ValueError` for the first argument that is not one row of int64."""
    for name, value in ids.items():
        if value.dtype != torch.int64 or value.dim() != 1:
            raise ValueError(
                f"{name} must be one row of int64, got {value.dtype} of shape {list(value.shape)}"
            )


def check_device(first: Tensor, *others: Tensor | None) -> None:
    """Raise `ValueError` unless all tensors are on one device.

    Some of torch's own functions read other memory, or end the process, if they are not.
    """
    for tensor in others:
        if tensor is not None and tensor.device != first.device:
            raise ValueError(
                f"all tensors must be on one device, got {first.device} and {tensor.device}"
            )


def check_shapes(**wanted: tuple[Tensor, tuple[int, ...]]) -> None:
    """Raise `ValueError` for the first tensor that has not the shape given with it.

    Compiled code, copies of memory and matrix products among it, does not look at bounds.
    """
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")


def refuse_second_derivative(name: str) -> None:
    """Raise `RuntimeError` in a backward pass that is itself to be differentiated."""
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(
            f"{name} has no second derivative; leave create_graph=False, or use its definition in "
            "crossbatch.kernels"
        )
