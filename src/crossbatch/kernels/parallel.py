"""Parts of an operation side by side, on the threads that torch itself computes with.

What is compiled here runs on one thread, while torch's own products use all of them. Threads of
our own would compete with torch's, which wait for work by turning round in a loop. So parts run on
torch's: its OpenMP library is asked for them, as torch asks. A product inside a part stays on the
thread of the part.

With one thread there is one part, and results are the same to the bit as without this file; with
more they depend on how many there are, and on nothing else.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

LEAST_NUMBERS = 1 << 17  # read or written by a part: starting one takes as long as some thousands

_Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Part(NamedTuple):
    """Rows `start` to `stop`, and their items `first` to `last`, where rows have items."""

    number: int
    start: int
    stop: int
    first: int
    last: int


def equal_parts(rows: int, numbers: int) -> list[Part]:
    """Cut rows, each of which is `numbers` to read and write, into a part for each thread."""
    n = _how_many(rows, numbers)
    if n == 1:
        return [Part(0, 0, rows, 0, rows)]
    cuts = [rows * i // n for i in range(n + 1)]
    return [Part(i, *cuts[i : i + 2], *cuts[i : i + 2]) for i in range(n)]


def equal_histories(stops: Tensor, P: int, numbers: int) -> list[Part]:
    """Cut histories that end at `stops` `[B]` into parts of about as many items.

    Args:
        stops: int64.
        P: Items of all histories.
        numbers: To read and write for an item.
    """
    B, n = stops.shape[0], _how_many(P, numbers)
    if n == 1:
        return [Part(0, 0, B, 0, P)]
    wanted = torch.tensor([P * i // n for i in range(1, n)], dtype=torch.int64)
    rows = [0, *torch.searchsorted(stops.contiguous(), wanted).add_(1).clamp_(max=B).tolist(), B]
    items = [int(stops[row - 1]) if row else 0 for row in rows]
    cuts = zip(rows, rows[1:], items, items[1:], strict=False)
    return [Part(i, *cut) for i, cut in enumerate(cut for cut in cuts if cut[0] < cut[1])]


def run_parts(run: Callable[[Part], None], parts: Sequence[Part]) -> None:
    """Call `run` for every part, each on a thread of its own.

    Parts must write to different memory. Without gradients: autograd does not follow.
    """
    if len(parts) == 1:
        run(parts[0])
        return
    waiting, failures = iter(parts), list[BaseException]()

    def work(_: object) -> None:
        try:
            with torch.no_grad():  # which is a matter of each thread
                for part in waiting:
                    run(part)
        except BaseException as error:
            failures.append(error)  # to be raised by the thread that called

    _start_threads()(_Body(work), None, len(parts), 0)
    if failures:
        raise failures[0]


def _how_many(rows: int, numbers: int) -> int:
    threads = torch.get_num_threads()
    if threads == 1 or rows * numbers < 2 * LEAST_NUMBERS or _start_threads() is None:
        return 1
    return max(1, min(threads, rows, rows * numbers // LEAST_NUMBERS))


@cache
def _start_threads() -> Any:
    """`GOMP_parallel(body, data, threads, flags)` of torch's OpenMP library; None without it."""
    for library in sorted(Path(torch.__file__).parent.glob("lib/libtorch_cpu.*")):
        try:  # a name is looked for in what the library depends on, too
            return ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
        except (OSError, AttributeError):  # another build of torch, another system
            continue
    return None
