"""Matrix products inside compiled functions, by the BLAS that torch itself calls.

At a batch of 128 a product takes 25 µs, and the way to it through Python and torch about as much
again. A compiled function calls `sgemm_` of torch's library directly: the same routine, the same
threads (`torch.set_num_threads`), the same bits.

    product(a, b, out, 0)        # out = a b
    product_t(a, b, out, 0)      # out = a bᵀ
    t_product(a, b, out, 1)      # out += aᵀ b

Arrays are float32 `[rows, columns]` whose rows have no gaps; there may be some between rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
import torch
from numba import njit, types

if TYPE_CHECKING:
    Array = np.ndarray

ROUTINE = "sgemm_"  # BLAS as Fortran calls it: every argument by reference, columns contiguous
FLOAT = 4  # bytes
NORMAL, TRANSPOSED = ord("N"), ord("T")

pointer = types.uintp
_sgemm: Any = types.ExternalFunction(ROUTINE, types.void(*[pointer] * 13))


def found() -> bool:
    """Make torch's routine known to compiled functions; False where it is hidden or another one."""
    for library in sorted(Path(torch.__file__).parent.glob("lib/*torch_cpu.*")):
        llvm.load_library_permanently(str(library))
    if not llvm.address_of_symbol(ROUTINE):  # linking to what is not there would end the process
        return False
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = np.zeros((2, 2), dtype=np.float32)
    product_t(a, a, out, 0)
    return out.tolist() == [[5, 14], [14, 50]]


@njit(cache=True, nogil=True)
def product(a: Array, b: Array, out: Array, keep: float) -> None:
    """Out `[m, n]` = a `[m, k]` b `[k, n]`, plus `keep` times what it held."""
    _multiply(b, NORMAL, a, NORMAL, b.shape[1], a.shape[0], a.shape[1], out, keep)


@njit(cache=True, nogil=True)
def product_t(a: Array, b: Array, out: Array, keep: float) -> None:
    """Out `[m, n]` = a `[m, k]` bᵀ, b `[n, k]`, plus `keep` times what it held."""
    _multiply(b, TRANSPOSED, a, NORMAL, b.shape[0], a.shape[0], a.shape[1], out, keep)


@njit(cache=True, nogil=True)
def t_product(a: Array, b: Array, out: Array, keep: float) -> None:
    """Out `[m, n]` = aᵀ b, a `[k, m]`, b `[k, n]`, plus `keep` times what it held."""
    _multiply(b, NORMAL, a, TRANSPOSED, b.shape[1], a.shape[1], a.shape[0], out, keep)


@njit(cache=True, nogil=True)
def _multiply(
    left: Array,
    form: int,
    right: Array,
    other: int,
    m: int,
    n: int,
    k: int,
    out: Array,
    keep: float,
) -> None:
    """outᵀ `[m, n]` = left right as Fortran sees them: every array is its own transpose there."""
    if m == 0 or n == 0:
        return
    forms = np.empty(2, dtype=np.uint8)
    forms[0], forms[1] = form, other
    factors = np.empty(2, dtype=np.float32)
    factors[0], factors[1] = 1, keep
    sizes = np.empty(6, dtype=np.int32)
    sizes[0], sizes[1], sizes[2] = m, n, k
    sizes[3], sizes[4] = left.strides[0] // FLOAT, right.strides[0] // FLOAT
    sizes[5] = out.strides[0] // FLOAT
    form_at, factor_at, size_at = forms.ctypes.data, factors.ctypes.data, sizes.ctypes.data
    _sgemm(
        form_at, form_at + 1, size_at, size_at + 4, size_at + 8, factor_at,
        left.ctypes.data, size_at + 12, right.ctypes.data, size_at + 16,
        factor_at + FLOAT, out.ctypes.data, size_at + 20,
    )  # fmt: skip
