"""Requests that arrive together are answered together: one tower call, one search call.

    batcher = Batcher(answer, max_batch=64, max_queue=512)
    running = asyncio.create_task(batcher.run())
    reply = await batcher.ask(query)

While the worker thread computes one batch the next one gathers, so that batches grow by themselves
with the load. A short wait at the beginning pays too: a search for ten costs far less than ten.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Q = TypeVar("Q")
A = TypeVar("A")


class Overloaded(Exception):  # noqa: N818 - a state of the server, not a mistake of anybody
    """The queue is full: the caller should come back a little later."""


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Q, A]):
    query: Q
    future: asyncio.Future[A]
    since: float


class Batcher(Generic[Q, A]):
    """A bounded queue in front of one worker thread.

    Args:
        answer: Called in the worker thread with 1 to `max_batch` queries; returns one answer for
            each, in order. An exception in the place of an answer goes to its asker alone; a raised
            one goes to all of the batch.
        max_batch: The most queries of one call.
        max_wait: Seconds that a query waits for others; those that arrive while a batch is computed
            have waited already.
        max_queue: The most queries that may wait; further ones are refused at once.
        on_batch: Called with the size of every batch.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Q]], Sequence[A | Exception]],
        *,
        max_batch: int = 64,
        max_wait: float = 0.002,
        max_queue: int = 512,
        on_batch: Callable[[int], object] = bool,
    ) -> None:
        for name, value in (("max_batch", max_batch), ("max_queue", max_queue)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._answer, self._on_batch = answer, on_batch
        self._max_batch, self._max_wait, self._max_queue = max_batch, max_wait, max_queue
        self._waiting: deque[_Waiting[Q, A]] = deque()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        """How many queries wait."""
        return len(self._waiting)

    async def ask(self, query: Q) -> A:
        """Queue one query and wait for its answer.

        Raises:
            Overloaded: If too many wait already.
        """
        if len(self._waiting) >= self._max_queue:
            raise Overloaded
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        self._waiting.append(_Waiting(query, future, loop.time()))
        self._arrived.set()
        return await future

    async def run(self) -> None:
        """Answer until cancelled; whoever still waits then is cancelled too."""
        loop = asyncio.get_running_loop()
        batch: list[_Waiting[Q, A]] = []
        with ThreadPoolExecutor(1, thread_name_prefix="search") as worker:
            try:
                while True:
                    await self._gather()
                    batch = self._take()
                    if batch:
                        self._on_batch(len(batch))
                        queries = [waiting.query for waiting in batch]
                        answers = await loop.run_in_executor(worker, self._guarded, queries)
                        _deliver(batch, answers)
            finally:
                for waiting in (*batch, *self._waiting):
                    waiting.future.cancel()

    async def _gather(self) -> None:
        """Wait for a first query, and a little longer for others, unless it has waited already."""
        await self._arrived.wait()
        left = self._waiting[0].since + self._max_wait - asyncio.get_running_loop().time()
        if left > 0 and len(self._waiting) < self._max_batch:
            await asyncio.sleep(left)

    def _take(self) -> list[_Waiting[Q, A]]:
        """Take the oldest queries; those whose asker has left are dropped."""
        batch: list[_Waiting[Q, A]] = []
        while self._waiting and len(batch) < self._max_batch:
            waiting = self._waiting.popleft()
            if not waiting.future.done():
                batch.append(waiting)
        if not self._waiting:
            self._arrived.clear()
        return batch

    def _guarded(self, queries: Sequence[Q]) -> Sequence[A | Exception]:
        try:
            return self._answer(queries)
        except Exception as error:  # the loop must outlive every batch
            return [error] * len(queries)


def _deliver(batch: Sequence[_Waiting[Q, A]], answers: Sequence[A | Exception]) -> None:
    for waiting, answer in zip(batch, answers, strict=True):
        if waiting.future.done():
            continue
        if isinstance(answer, Exception):
            waiting.future.set_exception(answer)
        else:
            waiting.future.set_result(answer)
