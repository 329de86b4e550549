"""Dropout whose noise is computed from a seed where it is needed, and never stored.

torch draws such noise one number after the other on a single core, which takes as long as a matrix
product. Here the noise of entry i is a hash of i and the seed: forward and backward pass compute
it again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossbatch.kernels.compiler import Array, array, check_shapes, compiled, inlined, np, usable
from crossbatch.kernels.parallel import Part, equal_parts, run_parts

BITS = 32
STEP, FIRST, SECOND = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35  # odd numbers without a pattern


def new_seed(device: torch.device) -> Tensor:
    """`[2]` a seed from torch's generator."""
    return torch.randint(0, 1 << BITS, (2,), device=device)


def kept_definition(entries: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Whether entries, int64 numbers of any shape, stay when a share `rate` is dropped."""
    last_bits = (1 << BITS) - 1
    x = (entries * STEP + seed[0]) & last_bits
    x = ((x ^ (x >> 16)) * FIRST) & last_bits
    x = ((x ^ (x >> 13) ^ seed[1]) * SECOND) & last_bits
    return (x ^ (x >> 16)) >= threshold(rate)


def threshold(rate: float) -> int:
    """Entries stay whose hash is at least this."""
    return round(rate * (1 << BITS))


@inlined
def kept(entry: Any, least: Any, seed: Any, other_seed: Any) -> Any:
    """`kept_definition` for compiled functions; all numbers are uint32, `least` the threshold."""
    x = np.uint32(entry * np.uint32(STEP) + seed)
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(FIRST))
    x = np.uint32((x ^ (x >> np.uint32(13)) ^ other_seed) * np.uint32(SECOND))
    return (x ^ (x >> np.uint32(16))) >= least


def definition(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """As `dropout`."""
    entries = torch.arange(x.numel(), device=x.device).view(x.shape)
    return x * kept_definition(entries, rate, seed) / (1 - rate)


def dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """`x` with a share `rate` of its entries set to 0, and the others divided by 1 − rate.

    Args:
        x: Of any shape.
        rate: In [0, 1).
        seed: From `new_seed`.
    """
    check_shapes(seed=(seed, (2,)))
    if not usable(x, ids=[seed]):
        return definition(x, rate, seed)
    found: Tensor = _Dropout.apply(x, rate, seed)  # type: ignore[no-untyped-call]
    return found


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, seed: Tensor) -> Tensor:
        ctx.noise = rate, seed
        return _dropped(x, rate, seed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # create_graph=True
            return definition(grad, *ctx.noise), None, None
        return _dropped(grad, *ctx.noise), None, None


def _dropped(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    found = torch.empty(x.shape)
    source, target = array(x).reshape(-1), found.view(-1).numpy()
    noise = np.uint32(min(threshold(rate), 2**BITS - 1)), *array(seed).astype(np.uint32)

    def run(part: Part) -> None:
        some = slice(part.start, part.stop)
        _drop(source[some], target[some], part.start, 1 / (1 - rate), *noise)

    run_parts(run, equal_parts(len(source), 2))
    return found


@compiled
def _drop(
    source: Array, target: Array, first: int, factor: float, least: Any, seed: Any, other_seed: Any
) -> None:
    """Write the entries from number `first` on."""
    scale = np.float32(factor)
    for i in range(source.shape[0]):
        stays = kept(np.uint32(first + i), least, seed, other_seed)
        target[i] = source[i] * scale if stays else np.float32(0)
