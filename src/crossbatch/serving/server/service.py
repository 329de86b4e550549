"""The service behind the HTTP paths: bundles, a queue in front of them, reloading.

Requests that arrive together are answered together, with one call of the tower and one search.
While the worker thread computes one batch the next one collects, so that batches grow with the
load.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from crossbatch.errors import ConfigError
from crossbatch.serving.server.answers import Answer, Query, answer_all
from crossbatch.serving.server.logs import Exposures, log_event
from crossbatch.serving.server.messages import Overloaded, RecommendRequest
from crossbatch.serving.server.monitoring import REQUEST, Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from crossbatch.serving.server.live_bundle import LiveBundle
    from crossbatch.serving.server.run import ServeOptions

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")

WATCH_SECONDS = 1.0
MAX_LOOKUPS = 32  # searches for titles that may wait
MAX_SHADOWS = 16  # queries that wait when another bundle is asked too; users come first


class Batcher(Generic[Q, A]):
    """A bounded queue in front of one worker thread.

    Args:
        answer: Called in the worker thread with 1 to `max_batch` queries; returns one answer for
            each, in order. An exception in the place of an answer goes to that caller alone; a
            raised one goes to all of the batch.
        max_batch: The most queries of one call.
        max_wait: Seconds that a query waits for others: one search for ten queries costs far less
            than ten. Those that arrive while a batch is computed have waited already.
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
        self._answer, self._on_batch = answer, on_batch
        self._max_batch, self._max_wait, self._max_queue = max_batch, max_wait, max_queue
        self._waiting: deque[tuple[Q, asyncio.Future[A], float]] = deque()  # and since when
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
        self._waiting.append((query, future, loop.time()))
        self._arrived.set()
        return await future

    async def run(self) -> None:
        """Answer until cancelled; queries that still wait then are cancelled too."""
        loop = asyncio.get_running_loop()
        batch: dict[asyncio.Future[A], Q] = {}
        with ThreadPoolExecutor(1, thread_name_prefix="search") as worker:
            try:
                while True:
                    batch = await self._next_batch()
                    if not batch:
                        continue
                    self._on_batch(len(batch))
                    queries = list(batch.values())
                    answers = await loop.run_in_executor(worker, self._answer_safely, queries)
                    for future, answer in zip(batch, answers, strict=True):
                        if future.done():  # the caller has left
                            continue
                        if isinstance(answer, Exception):
                            future.set_exception(answer)
                        else:
                            future.set_result(answer)
            finally:
                for future in (*batch, *(future for _, future, _ in self._waiting)):
                    future.cancel()

    async def _next_batch(self) -> dict[asyncio.Future[A], Q]:
        """The oldest queries, after a short wait for more; those whose caller left are dropped."""
        await self._arrived.wait()
        left = self._waiting[0][2] + self._max_wait - asyncio.get_running_loop().time()
        if left > 0 and len(self._waiting) < self._max_batch:
            await asyncio.sleep(left)
        batch: dict[asyncio.Future[A], Q] = {}
        while self._waiting and len(batch) < self._max_batch:
            query, future, _ = self._waiting.popleft()
            if not future.done():
                batch[future] = query
        if not self._waiting:
            self._arrived.clear()
        return batch

    def _answer_safely(self, queries: Sequence[Q]) -> Sequence[A | Exception]:
        try:
            return self._answer(queries)
        except Exception as error:  # the loop must outlive every batch
            return [error] * len(queries)


def key_share(key: str) -> float:
    """A number in [0, 1) that depends on the key alone, and is uniform over keys."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2.0**56


class Service:
    """Answers queries with the bundles, by slot, that serve at the time."""

    def __init__(
        self, bundles: Mapping[str, LiveBundle], metrics: Metrics, options: ServeOptions
    ) -> None:
        self.bundles, self.metrics = bundles, metrics
        self._timeout, self._watch = options.timeout, options.watch
        self._batcher: Batcher[Query, Answer] = Batcher(
            partial(answer_all, bundles, observe=self._observe),
            max_queue=options.max_queue,
            on_batch=self._count_batch,
        )
        self._share, self._shadow = options.share, options.shadow
        self._exposures = None if options.exposure_log is None else Exposures(options)
        self._shadows: set[asyncio.Task[None]] = set()
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="lookup")
        self._lookups_waiting = 0
        self._reloading = asyncio.Lock()
        for live in bundles.values():
            self._publish(live)

    def slot(self, name: str) -> LiveBundle:
        """The live bundle of a slot.

        Raises:
            ConfigError: If the server was started without it.
        """
        if name not in self.bundles:
            raise ConfigError("bundle: there is none to compare with; start with --compare BUNDLE")
        return self.bundles[name]

    async def recommend(self, query: RecommendRequest) -> Answer:
        """Answer by the bundle that the query names or its key decides; record what is shown."""
        request = REQUEST.get()
        if query.bundle is None:
            picked = self._share > 0 and key_share(query.key or request) < self._share
            query = query.model_copy(update={"bundle": "compare" if picked else "main"})
        answer = await self.ask(query)
        self._record(query, answer, request, shadow=False)
        if self._shadow and query.bundle == "main" and len(self._batcher) <= MAX_SHADOWS:
            task = asyncio.create_task(self._ask_shadow(query, request))
            self._shadows.add(task)  # a task without a reference may be collected
            task.add_done_callback(self._shadows.discard)
        return answer

    async def _ask_shadow(self, query: RecommendRequest, request: str) -> None:
        """Let the other bundle answer too, for the records alone; its errors concern no one."""
        query = query.model_copy(update={"bundle": "compare", "explain": False})
        with contextlib.suppress(Exception):
            self._record(query, await self._batcher.ask(query), request, shadow=True)

    def _record(
        self, query: RecommendRequest, answer: Answer, request: str, *, shadow: bool
    ) -> None:
        self.metrics.recommendations.labels(query.bundle, str(shadow).lower()).inc()
        if self._exposures is not None:
            self._exposures.write(query, answer, request, shadow=shadow)

    def _count_batch(self, size: int) -> None:
        self.metrics.batch_size.observe(size)
        self.metrics.waiting.set(len(self._batcher))

    def _observe(self, stage: str, seconds: float) -> None:
        self.metrics.stage_seconds.labels(stage).observe(seconds)

    async def ask(self, query: Query) -> Answer:
        """Answer one query, together with those that arrive at the same time.

        Raises:
            Overloaded: If too many wait.
            TimeoutError: If the answer would come too late.
        """
        self.slot(query.bundle or "main")
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._batcher.ask(query)
        except Overloaded:
            self.metrics.overloaded.inc()
            raise
        self.metrics.unknown_items.inc(answer.num_unknown)
        return answer

    async def look_up(self, question: Callable[[], T]) -> T:
        """Run a search for items in a thread of its own, apart from recommendations."""
        if self._lookups_waiting >= MAX_LOOKUPS:
            self.metrics.overloaded.inc()
            raise Overloaded
        self._lookups_waiting += 1
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.get_running_loop().run_in_executor(self._lookups, question)
        finally:
            self._lookups_waiting -= 1

    def prepare(self, live: LiveBundle) -> None:
        """Build the title search in the background: a client that lists items will search soon."""
        if not live.serving.items.searchable:
            self._lookups.submit(live.serving.items.titles)

    async def reload(self) -> None:
        """Load the bundles that are at the paths now, one after the other."""
        async with self._reloading:
            for live in self.bundles.values():
                await self._reload(live)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer inside this block; SIGHUP reloads."""
        tasks = {asyncio.create_task(self._batcher.run())}
        if self._watch:
            tasks.add(asyncio.create_task(self._watch_paths()))

        def hangup() -> None:
            task = asyncio.create_task(self.reload())
            tasks.add(task)  # a task without a reference may be collected
            task.add_done_callback(tasks.discard)

        with contextlib.suppress(NotImplementedError, RuntimeError):  # Windows; a test's thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._lookups.shutdown(wait=False, cancel_futures=True)
            if self._exposures is not None:
                self._exposures.close()

    async def _watch_paths(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for live in self.bundles.values():
                if await asyncio.to_thread(live.changed):
                    log_event("new bundle seen", slot=live.slot)
                    async with self._reloading:
                        await self._reload(live)

    async def _reload(self, live: LiveBundle) -> None:
        before = live.serving.name_and_version
        taken = await asyncio.to_thread(live.reload)
        self.metrics.reloads.labels(live.slot, "taken" if taken else "refused").inc()
        if taken:
            self.metrics.forget_bundle(live.slot, before["name"], before["version"])
            self._publish(live)

    def _publish(self, live: LiveBundle) -> None:
        """Show in the metrics which bundle serves."""
        names = live.serving.name_and_version
        self.metrics.bundle.labels(live.slot, names["name"], names["version"]).set(1)
        self.metrics.items.labels(live.slot).set(live.serving.bundle.num_items)
