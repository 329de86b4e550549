"""Joins the ranks, checks that they agree before they start, and reports a lost rank."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from crossbatch.errors import ConfigError, Interrupted, OtherRankError, RankLostError
from crossbatch.training.distributed.ranks import LostContactError, Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

TIMEOUT = 600.0
GRACE = 3.0  # seconds in which the ranks that are left tell each other so
WAITED, FAILED = b"waited", b"failed"  # how a rank left: without an answer, or with an error
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets


@contextmanager
def joined(timeout: float = TIMEOUT) -> Iterator[Ranks | None]:
    """The ranks that torchrun started, or None for a process on its own.

    A process group that exists already (Ray Train makes one) is used as it is.

    Args:
        timeout: Seconds that a rank waits for the others before it gives up.

    Raises:
        RankLostError: If another rank stops answering inside.
    """
    if dist.is_initialized():
        size = dist.get_world_size()
        yield Ranks(dist.get_rank(), size) if size > 1 else None
        return
    if not set(LAUNCHER) <= set(os.environ) or int(os.environ["WORLD_SIZE"]) < 2:
        yield None
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        backend = "cpu:gloo,cuda:nccl"
    limit = timedelta(seconds=timeout)
    shared, rank, size = next(rendezvous("env://", timeout=limit))
    # torchrun's store outlives a restart, and still has the addresses of ranks that have ended.
    store: Any = PrefixStore(f"start {os.environ.get(RESTARTS, '0')}", shared)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    ranks = Ranks(rank, size)
    try:
        yield ranks
    except LostContactError:
        raise RankLostError(_lost_ranks_message(store, ranks, timeout)) from None
    except BaseException as error:
        store.set(f"left/{rank}", FAILED)
        if isinstance(error, Interrupted):  # agreed by all ranks: none waits for an answer
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def first_here() -> bool:
    """Whether this is the one process of those that torchrun started that prints messages."""
    return int(os.environ.get("RANK", "0")) == 0


def restarted() -> bool:
    """Whether torchrun started this process again after a failure (`--max-restarts`)."""
    return int(os.environ.get(RESTARTS, "0")) > 0


def together(ranks: Ranks | None, action: Callable[[], T]) -> T:
    """What `action` returns here; if it is a user's mistake on one rank, every rank ends.

    Without it the others would wait for that rank until their time limit.
    """
    if ranks is None:
        return action()
    failure: Exception | None = None
    try:
        result = action()
    except (ValueError, OSError) as error:
        failure = error
    failures = ranks.collect_objects(None if failure is None else str(failure))
    failed = [rank for rank, text in enumerate(failures) if text is not None]
    if not failed:
        return result
    if failure is not None and ranks.rank == failed[0]:
        raise failure
    raise OtherRankError(f"rank {failed[0]}: {failures[failed[0]]}")


def check_alike(ranks: Ranks, facts: dict[str, Any]) -> None:
    """Raise `ConfigError`, on the first rank that differs, unless all have the same `facts`."""
    all_facts = ranks.collect_objects(facts)

    def compare() -> None:
        expected = all_facts[0]
        for key in expected | facts:
            if facts.get(key) != expected.get(key):
                raise ConfigError(
                    f"{key} is {facts.get(key)!r} on rank {ranks.rank}, but {expected.get(key)!r} "
                    "on rank 0; start all ranks with the same recipe, data and version"
                )

    together(ranks, compare)


def _lost_ranks_message(store: Any, ranks: Ranks, timeout: float) -> str:
    """A sentence for the user from the lowest rank that is left; nothing from the others."""
    present, reported = {ranks.rank}, False
    deadline = time.monotonic() + GRACE
    try:
        store.set(f"left/{ranks.rank}", WAITED)
        while time.monotonic() < deadline and len(present) < ranks.size:
            time.sleep(0.1)
            present = {rank for rank in range(ranks.size) if store.check([f"left/{rank}"])}
        reported = any(store.get(f"left/{rank}") == FAILED for rank in present)
    except RuntimeError:  # the store went with the rank that kept it
        pass
    if reported or ranks.rank != min(present):
        return ""
    lost = [str(rank) for rank in range(ranks.size) if rank not in present]
    name = f"rank{'s' * (len(lost) > 1)} {', '.join(lost)}" if lost else "the other ranks"
    return (
        f"lost contact with {name} of {ranks.size}: killed, or without a sign for {timeout:g} s; "
        "the newest checkpoint is whole: start all ranks again with --resume"
    )
