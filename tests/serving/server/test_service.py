"""The queue in front of the search thread: batches, refusals, cancellation."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.serving.server.messages import Overloaded
from crossbatch.serving.server.service import Batcher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence


async def with_running(batcher: Batcher[int, int], work: Awaitable[None]) -> None:
    task = asyncio.create_task(batcher.run())
    try:
        await work
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@given(arrivals=st.lists(st.integers(0, 3), min_size=1, max_size=40), max_batch=st.integers(1, 8))
def test_each_query_gets_its_own_answer(arrivals: list[int], max_batch: int) -> None:
    """Queries come in bursts; each is answered once, in order, in batches of bounded size."""
    batches: list[list[int]] = []

    def answer(queries: Sequence[int]) -> list[int]:
        batches.append(list(queries))
        return [2 * query for query in queries]

    async def run() -> None:
        sizes: list[int] = []
        batcher = Batcher(answer, max_batch=max_batch, max_wait=0, on_batch=sizes.append)

        async def work() -> None:
            asked = []
            for number, pause in enumerate(arrivals):
                asked.append(asyncio.create_task(batcher.ask(number)))
                for _ in range(pause):
                    await asyncio.sleep(0)
            assert await asyncio.gather(*asked) == [2 * n for n in range(len(arrivals))]

        await with_running(batcher, work())
        assert sizes == [len(batch) for batch in batches]

    asyncio.run(run())
    assert [query for batch in batches for query in batch] == list(range(len(arrivals)))
    assert max(len(batch) for batch in batches) <= max_batch


def test_queries_that_arrive_during_a_batch_are_answered_together() -> None:
    batches: list[list[int]] = []
    release = threading.Event()

    def answer(queries: Sequence[int]) -> list[int]:
        batches.append(list(queries))
        release.wait(300)
        return list(queries)

    async def run() -> None:
        batcher = Batcher(answer, max_wait=0)

        async def work() -> None:
            first = asyncio.create_task(batcher.ask(0))
            while not batches:
                await asyncio.sleep(0.001)
            others = [asyncio.create_task(batcher.ask(number)) for number in (1, 2, 3)]
            await asyncio.sleep(0)
            assert len(batcher) == 3
            release.set()
            assert await asyncio.gather(first, *others) == [0, 1, 2, 3]

        await with_running(batcher, work())

    asyncio.run(run())
    assert batches == [[0], [1, 2, 3]]


def test_a_first_query_waits_a_moment_for_others() -> None:
    batches: list[int] = []

    def answer(queries: Sequence[int]) -> list[int]:
        batches.append(len(queries))
        return list(queries)

    async def run() -> None:
        batcher = Batcher(answer, max_wait=2)

        async def work() -> None:
            first = asyncio.create_task(batcher.ask(0))
            for _ in range(5):  # the batcher has seen it, and waits
                await asyncio.sleep(0)
            await asyncio.gather(first, batcher.ask(1))

        await with_running(batcher, work())

    asyncio.run(run())
    assert batches == [2]


def test_a_full_queue_refuses_at_once() -> None:
    async def run() -> None:
        batcher: Batcher[int, int] = Batcher(list, max_queue=2)  # its worker never starts
        waiting = [asyncio.create_task(batcher.ask(number)) for number in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await batcher.ask(2)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())


def test_an_error_in_place_of_an_answer_concerns_one_query() -> None:
    def answer(queries: Sequence[int]) -> list[int | Exception]:
        return [ValueError("odd") if query % 2 else query for query in queries]

    async def run() -> None:
        batcher = Batcher(answer, max_wait=0.05)

        async def work() -> None:
            found = await asyncio.gather(*map(batcher.ask, range(4)), return_exceptions=True)
            assert [found[0], found[2]] == [0, 2]
            assert all(isinstance(found[place], ValueError) for place in (1, 3))

        await with_running(batcher, work())

    asyncio.run(run())


def test_a_batch_that_fails_does_not_end_the_service() -> None:
    def answer(queries: Sequence[int]) -> list[int]:
        if 13 in queries:
            raise RuntimeError("unlucky")
        return list(queries)

    async def run() -> None:
        batcher = Batcher(answer, max_wait=0)

        async def work() -> None:
            with pytest.raises(RuntimeError, match="unlucky"):
                await batcher.ask(13)
            assert await batcher.ask(14) == 14

        await with_running(batcher, work())

    asyncio.run(run())


def test_a_cancelled_query_is_not_answered() -> None:
    asked: list[int] = []

    def answer(queries: Sequence[int]) -> list[int]:
        asked.extend(queries)
        return list(queries)

    async def run() -> None:
        batcher = Batcher(answer, max_wait=1)

        async def work() -> None:
            impatient = asyncio.create_task(batcher.ask(1))
            await asyncio.sleep(0)
            impatient.cancel()
            assert await batcher.ask(2) == 2

        await with_running(batcher, work())

    asyncio.run(run())
    assert asked == [2]


def test_queries_that_wait_at_the_end_are_cancelled() -> None:
    async def run() -> None:
        batcher: Batcher[int, int] = Batcher(list, max_wait=60)
        task = asyncio.create_task(batcher.run())
        waiting = asyncio.create_task(batcher.ask(1))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())
