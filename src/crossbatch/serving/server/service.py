"""What the application asks: the bundles, the queue in front of them, how they are renewed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from crossbatch.errors import ConfigError
from crossbatch.serving.server.answers import Answer, Query, answer_all
from crossbatch.serving.server.batching import Batcher, Overloaded
from crossbatch.serving.server.json_log import event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from crossbatch.serving.server.live_bundle import LiveBundle
    from crossbatch.serving.server.metrics import Metrics

T = TypeVar("T")

WATCH_SECONDS = 1.0
MAX_LOOKUPS = 32  # searches for titles that may wait


class Service:
    """Answers questions with the bundles that serve at the time.

    Args:
        bundles: By slot; "main" is always there.
        metrics: Where to count.
        timeout: Seconds after which an answer comes too late.
        max_batch: The most requests of one search.
        max_queue: The most requests that may wait for one.
        watch: Whether a new bundle at the same path is taken up by itself.
    """

    def __init__(
        self,
        bundles: Mapping[str, LiveBundle],
        metrics: Metrics,
        *,
        timeout: float = 10.0,
        max_batch: int = 64,
        max_queue: int = 512,
        watch: bool = False,
    ) -> None:
        self.bundles, self.metrics = bundles, metrics
        self._timeout, self._watch = timeout, watch
        self._batcher: Batcher[Query, Answer] = Batcher(
            partial(answer_all, bundles),
            max_batch=max_batch,
            max_queue=max_queue,
            on_batch=metrics.batch_size.observe,
        )
        metrics.waiting.set_function(lambda: len(self._batcher))
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="lookup")
        self._lookups_waiting = 0
        self._reloading = asyncio.Lock()
        for live in bundles.values():
            self._show(live)

    def slot(self, name: str) -> LiveBundle:
        """The live bundle of a slot.

        Raises:
            ConfigError: If the server was started without it.
        """
        if name not in self.bundles:
            raise ConfigError("bundle: there is none to compare with; start with --compare BUNDLE")
        return self.bundles[name]

    async def ask(self, query: Query) -> Answer:
        """Answer one query, together with those that arrive at the same time.

        Raises:
            Overloaded: If too many wait.
            TimeoutError: If the answer would come too late.
        """
        self.slot(query.slot)
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
        """Build the search over titles in the background: whoever looks at items will want it."""
        if not live.serving.facts.searchable:
            self._lookups.submit(live.serving.facts.titles)

    async def reload(self) -> None:
        """Take up the bundles that lie at the paths now, one after the other."""
        async with self._reloading:
            for live in self.bundles.values():
                await self._reload(live)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer inside this block; SIGHUP reloads."""
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(self._batcher.run())]
        if self._watch:
            tasks.append(asyncio.create_task(self._watch_paths()))
        reloads: set[asyncio.Task[None]] = set()

        def hangup() -> None:
            task = asyncio.create_task(self.reload())
            reloads.add(task)  # a task that nobody holds may vanish
            task.add_done_callback(reloads.discard)

        with contextlib.suppress(NotImplementedError, RuntimeError):  # Windows; a test's thread
            loop.add_signal_handler(signal.SIGHUP, hangup)
        try:
            yield
        finally:
            for task in (*tasks, *reloads):
                task.cancel()
            await asyncio.gather(*tasks, *reloads, return_exceptions=True)
            self._lookups.shutdown(wait=False, cancel_futures=True)

    async def _watch_paths(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for live in self.bundles.values():
                if await asyncio.to_thread(live.changed):
                    event("new bundle seen", slot=live.slot)
                    async with self._reloading:
                        await self._reload(live)

    async def _reload(self, live: LiveBundle) -> None:
        before = live.serving.name_and_version
        taken = await asyncio.to_thread(live.reload)
        self.metrics.reloads.labels(live.slot, "taken" if taken else "refused").inc()
        if taken:
            self.metrics.bundle.remove(live.slot, before["name"], before["version"])
            self._show(live)

    def _show(self, live: LiveBundle) -> None:
        names = live.serving.name_and_version
        self.metrics.bundle.labels(live.slot, names["name"], names["version"]).set(1)
        self.metrics.items.labels(live.slot).set(live.serving.bundle.num_items)
