"""Indexes of faiss that someone crafted: each is read and searched in a process of its own."""

from __future__ import annotations

import os
import resource
import struct
from typing import TYPE_CHECKING

import pytest
import torch

from .conftest import FAULTS

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from .conftest import Counts

pytest.importorskip("faiss")
from crossbatch.retrieval import IVFIndex

CRAFTED = FAULTS or 10
ITEMS, HEAD = 400, 400  # bytes at the start, where faiss keeps its numbers
NUMBERS = [-1, 0, 1, 7, 401, 10**9, 2**31, 2**62, -(2**62)]
KINDS = [b"IxFI", b"IHNf", b"IxPq", b"IBxF", b"IwSQ"]
HARMLESS, REFUSED, NO_MEMORY, WRONG = range(4)


def crafted(whole: bytes, rng: Random) -> bytes:
    """The bytes of an index with something changed."""
    content = bytearray(whole)
    kind = rng.randrange(5)
    if kind == 0:
        content[rng.randrange(HEAD)] ^= 1 << rng.randrange(8)
    elif kind in (1, 2):
        place = rng.randrange(HEAD if kind == 1 else len(content) - 8)
        content[place : place + 8] = struct.pack("<q", rng.choice(NUMBERS))
    elif kind == 3:
        del content[rng.randrange(len(content)) :]
    else:
        content[:4] = rng.choice(KINDS)
    return bytes(content)


def outcome(path: Path, vectors: torch.Tensor) -> int:
    """How reading and searching the index ended; negative for a signal."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    code = WRONG
    try:
        ids = IVFIndex.load(path, vectors, probes=4).search(vectors[1:3, None], 5).item_ids
        code = HARMLESS if bool(((ids > 0) & (ids <= ITEMS)).all()) else WRONG
    except ValueError:
        code = REFUSED
    except MemoryError:
        code = NO_MEMORY
    finally:
        os._exit(code)


def test_crafted_indexes_are_refused_or_harmless(
    tmp_path: Path, rng: Random, counts: Counts
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads do not survive a fork
    try:
        vectors = torch.randn(ITEMS + 1, 16, generator=torch.Generator().manual_seed(0))
        IVFIndex.build(vectors).save(tmp_path / "whole")
        whole = (tmp_path / "whole").read_bytes()
        assert outcome(tmp_path / "whole", vectors) == HARMLESS
        names = {HARMLESS: "harmless", REFUSED: "refused", NO_MEMORY: "refused for its memory"}
        for _ in range(CRAFTED):
            (tmp_path / "crafted").write_bytes(crafted(whole, rng))
            ended = outcome(tmp_path / "crafted", vectors)
            assert ended in names
            counts.survived("crafted index of faiss", names[ended])
    finally:
        torch.set_num_threads(threads)
