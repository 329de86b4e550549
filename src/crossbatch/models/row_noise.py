"""Noise of a batch that several processes share: each draws that of all rows and keeps its own.

with rows_of(start=64, total=128, generator=shared):
    noise = uniform_rows((64, 20), device)      # rows 64..127 of one draw of [128, 20]
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Rows:
    start: int
    total: int
    generator: torch.Generator


_rows: ContextVar[_Rows | None] = ContextVar("rows", default=None)


@contextmanager
def rows_of(start: int, total: int, generator: torch.Generator) -> Iterator[None]:
    """Inside, rows are those from `start` on of a batch of `total`.

    Args:
        start: Place of the first row in the whole batch.
        total: Rows of the whole batch.
        generator: Source of its noise, in the same state in every process that has a part.
    """
    before = _rows.set(_Rows(start, total, generator))
    try:
        yield
    finally:
        _rows.reset(before)


def uniform_rows(shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
    """Uniform noise of `shape` `[B, …]`, whatever number of processes the batch is spread over."""
    rows = _rows.get()
    if rows is None:
        return torch.rand(shape, device=device)
    whole = torch.rand(rows.total, *shape[1:], device=device, generator=rows.generator)
    return whole[rows.start : rows.start + shape[0]]
