"""Memory of a training process: large pages for large tables, and freed memory kept for reuse."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

WORTH_IT = 1 << 23  # bytes
ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux has it
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # options of `mallopt`, from malloc.h
KEPT = 1 << 30  # bytes: larger tensors are the system's own business
LARGE = 1 << 24  # bytes
CHOSEN_BY_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def on_large_pages(fresh: Tensor) -> Tensor:
    """Ask the system to back a tensor by large pages, and return it.

    A row anywhere in 80 MB is on a page of its own, and finding that page takes as long as reading
    the row. With pages of 2 MB instead of 4 KB a step's rows are updated a third faster.

    Args:
        fresh: Just made and not written to: pages are chosen when they are first touched.
    """
    size = fresh.numel() * fresh.element_size()
    if ADVICE is None or fresh.device.type != "cpu" or size < WORTH_IT:
        return fresh
    first = -(-fresh.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = fresh.data_ptr() + size - first
    # A refusal changes nothing but the speed.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), ADVICE)
    return fresh


def zeros_on_large_pages(like: Tensor) -> Tensor:
    """Zeros of the shape, type and device of a tensor, which take no memory until written to."""
    size = like.numel() * like.element_size()
    if ADVICE is None or like.device.type != "cpu" or size < WORTH_IT:
        return torch.zeros_like(like)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(ADVICE)
    return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)


@cache
def keep_freed_memory() -> bool:
    """Have this process reuse the memory of freed tensors up to `KEPT`; False where it does not.

    The C library returns blocks of more than 32 MB to the system as soon as they are freed. Every
    step of a large batch would then get its tensors as new pages, which the system fills with zeros
    first: that takes up to 40 % of the step. A process keeps what its largest step needs instead.
    Limits that the user has set by the C library's environment variables stay.
    """
    if sys.platform != "linux" or any(name in os.environ for name in CHOSEN_BY_USER):
        return False
    return _keep_up_to(KEPT)


def _keep_up_to(size: int) -> bool:
    """Whether the C library now keeps freed blocks of up to so many bytes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    # Older versions of the library refuse so high a limit; then nothing changes.
    return bool(mallopt and mallopt(MMAP_THRESHOLD, size) and mallopt(TRIM_THRESHOLD, size))


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Within it, freed tensors of more than `LARGE` go back to the system: for work done once.

    Otherwise the most that such work needs would be part of the process until its end.
    """
    keeps = keep_freed_memory()
    if keeps:
        _keep_up_to(LARGE)
    try:
        yield
    finally:
        if keeps:
            _keep_up_to(KEPT)
        return_freed_memory()


def return_freed_memory(*, collect: bool = False) -> None:
    """Give freed memory back to the system once, after work that needed more than a step does.

    Args:
        collect: Whether to search for garbage first, which takes some tenths of a second. Trainers
            are freed by that alone: their parts refer to each other.
    """
    if collect:
        gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim:
        trim(0)
