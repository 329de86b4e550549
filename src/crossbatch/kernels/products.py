"""Matrix products and linear layers of float32, by the faster of the two libraries inside torch.

torch multiplies float32 matrices with MKL, which uses AVX2 on processors that are not Intel's.
oneDNN, which torch contains for other purposes, uses all that a processor has: on AMD processors
that work on 512 bits at once it needs half the time, in the same precision. Those that take AVX-512
in two halves (Zen 4) gain next to nothing, and copies of transposed factors hinder two threads.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crossbatch.kernels.compiler import check_device

PROCESSOR = Path("/proc/cpuinfo")
FULL_WIDTH = 26  # AMD's first family, Zen 5, that works on 512 bits at once
FEWEST_MULTIPLICATIONS = 1 << 22  # below, calling oneDNN takes as long as it saves
# oneDNN compiles a product anew for every shape, which takes as long as a small product. So that
# shapes return, sizes that change from batch to batch are cut to a multiple, and MKL multiplies the
# rest; the widths of layers and vectors do not change.
MULTIPLE = 16
# Transposed factors: rows that are copied at a time, of which as many as are a multiple.
PIECE, PIECE_MULTIPLE = 1024, 128


def definition(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As `linear`."""
    return functional.linear(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer: x `[*, k]` times the transpose of weight `[n, k]`, plus bias `[n]`."""
    check_device(x, weight, bias)
    if not worth_it(x.numel() // max(x.shape[-1], 1), *weight.shape, x, weight, bias):
        return definition(x, weight, bias)
    found: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return found


def worth_it(m: int, n: int, k: int, *tensors: Tensor) -> bool:
    """Whether oneDNN takes less time for a product of m · n · k multiplications of these tensors.

    Under `torch.compile`, `torch.export` and autocast the definition is what counts.
    """
    # Under torch.export sizes may be symbols, which must not be compared with numbers.
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    if m * n * k < FEWEST_MULTIPLICATIONS or not has_faster_library():
        return False
    return all(tensor.dtype == torch.float32 and tensor.is_cpu for tensor in tensors)


@cache
def has_faster_library() -> bool:
    """Whether this is a processor on which oneDNN is the faster one, and torch has it."""
    try:
        about = PROCESSOR.read_text(encoding="utf-8", errors="replace")
    except OSError:  # another system than Linux
        return False
    family = re.search(r"^cpu family\s*:\s*(\d+)$", about, re.MULTILINE)
    if "AuthenticAMD" not in about or " avx512f " not in about or family is None:
        return False
    if int(family[1]) < FULL_WIDTH:
        return False
    eye = torch.eye(MULTIPLE)
    try:
        return torch.equal(_onednn(eye, eye), eye)
    except (AttributeError, RuntimeError):  # torch was built without it, or calls it by other names
        return False


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """`a` `[m, k]` times `b` `[k, n]`, transposed or not, plus a bias `[n]`. No gradient."""
    (m, k), n = a.shape, b.shape[1]
    if not worth_it(m, n, k, a, b):
        return _torch(a, b, bias)
    if a.stride(1) != 1:
        return _transposed(a, b) if bias is None else _transposed(a, b) + bias
    rows = m - m % MULTIPLE
    if not rows:
        return _torch(a, b, bias)
    b = without_gaps(b)
    if rows == m:
        return _onednn(a, b, bias)
    return torch.cat([_onednn(a[:rows], b, bias), _torch(a[rows:], b, bias)])


def _transposed(a: Tensor, b: Tensor) -> Tensor:
    """`a` `[m, k]` times `b` `[k, n]`, where the numbers of a column of `a` are side by side.

    oneDNN wants its first factor row by row. The narrower of the two is copied so, a piece that
    fits the cache at a time: of a whole long one the copy would take as long as the product.
    """
    (m, k), n = a.shape, b.shape[1]
    inner = k - k % PIECE_MULTIPLE
    if not inner or m % MULTIPLE:
        return _torch(a, b, None)
    narrow, wide = (b.t(), a.t()) if n <= m else (a, b)
    wide, total = without_gaps(wide), None
    for start in range(0, inner, PIECE):
        piece = slice(start, min(start + PIECE, inner))
        found = _onednn(narrow[:, piece].contiguous(), wide[piece])
        total = found if total is None else total.add_(found)
    assert total is not None
    total = total.t() if n <= m else total
    return total if inner == k else total.addmm_(a[:, inner:], b[inner:])


def without_gaps(b: Tensor) -> Tensor:
    """A second factor without gaps: with some, a product would take a thousand times as long."""
    return b if b.is_contiguous() or b.t().is_contiguous() else b.contiguous()


def _onednn(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    # A linear layer as torch's own compiler calls it: a [m, k], its weight [n, k].
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    return found


def _torch(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        found = multiply(x.reshape(-1, x.shape[-1]), weight.t(), bias)
        return found.view(*x.shape[:-1], len(bias))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        # With create_graph=True the gradient has a gradient itself, which `mm` has.
        product = torch.mm if torch.is_grad_enabled() else multiply
        of_x, of_weight, of_bias = ctx.needs_input_grad
        g = grad.reshape(-1, grad.shape[-1])  # [m, n]
        return (
            product(g, weight).view(x.shape) if of_x else None,
            product(g.t(), x.reshape(-1, x.shape[-1])) if of_weight else None,
            g.sum(dim=0) if of_bias else None,
        )
