"""Several server processes over one listening socket: `crossbatch serve --workers N`.

Each worker opens the bundle for itself; its files are mapped, so that all workers share one copy in
memory. The parent process answers nothing: it starts the workers, starts a new one where one ended,
and passes SIGHUP and SIGTERM on. Workers end with their parent, however that ends.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from prometheus_client.multiprocess import mark_process_dead

from crossbatch.errors import ConfigError, DataError
from crossbatch.serving.server.logs import log_event
from crossbatch.serving.server.monitoring import METRICS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

    Serve = Callable[[Callable[[], None]], None]

# A new process for each: one that was forked would have copies of this one's locks and threads.
SPAWN = multiprocessing.get_context("spawn")
PAUSE_SECONDS = 1.0  # before a worker is replaced, so that a broken bundle does not keep cores busy
STOP_SECONDS = 30.0  # in which a worker answers what it has begun; then it is killed


class Workers:
    """The worker processes of one server.

    Args:
        count: How many.
        serve: What a worker does until SIGTERM; it calls its argument, in its event loop, once it
            answers. Workers are new processes, so it must be picklable.
    """

    def __init__(self, count: int, serve: Serve) -> None:
        self._count, self._serve = count, serve
        self._running: list[BaseProcess] = []
        self._stopping = False
        self._waker, self._wake = os.pipe()  # a signal interrupts the wait for workers by a byte

    def run(self, listening: Callable[[list[int]], None]) -> None:
        """Keep the workers running until SIGTERM or SIGINT.

        Args:
            listening: Called with the process ids once all answer.

        Raises:
            ConfigError, DataError: If the first worker cannot serve; no other was started then.
        """
        with tempfile.TemporaryDirectory(prefix="crossbatch-metrics-") as folder:
            os.environ[METRICS_FOLDER] = folder
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_stop)
            signal.signal(signal.SIGHUP, self._on_hangup)
            try:
                for _ in range(self._count):
                    if not self._stopping:
                        self._start()
                listening([process.pid or 0 for process in self._running])
                self._supervise()
            finally:
                self._end()
                del os.environ[METRICS_FOLDER]

    def _start(self) -> None:
        """Start a worker and wait until it answers."""
        receiver, sender = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=_work, args=(self._serve, sender), daemon=True)
        process.start()
        sender.close()
        try:
            problem = receiver.recv()
        except EOFError:
            process.join()
            code = process.exitcode
            problem = DataError(f"a server process ended with code {code} before it could answer")
        finally:
            receiver.close()
        if problem is not None:
            process.join()
            raise problem
        self._running.append(process)

    def _supervise(self) -> None:
        """Replace workers that end, until it is time to stop."""
        while not self._stopping:
            wait([self._waker, *(process.sentinel for process in self._running)])
            for process in [each for each in self._running if not each.is_alive()]:
                self._running.remove(process)
                mark_process_dead(process.pid or 0)  # its gauges go, its counts stay
                if not self._stopping:
                    self._replace(process)

    def _replace(self, ended: BaseProcess) -> None:
        log_event("worker ended", pid=ended.pid, code=ended.exitcode)
        while not self._stopping:
            time.sleep(PAUSE_SECONDS)
            try:
                self._start()
            except (ConfigError, DataError) as error:
                log_event("worker not replaced", reason=str(error))
            else:
                log_event("worker started", pid=self._running[-1].pid)
                return

    def _end(self) -> None:
        """Let all workers answer what they have begun; kill what has not ended in time."""
        self._tell(signal.SIGTERM)
        give_up = time.monotonic() + STOP_SECONDS
        for process in self._running:
            process.join(max(0.0, give_up - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def _tell(self, number: signal.Signals) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                os.kill(process.pid or os.getpid(), number)

    def _on_stop(self, *_: object) -> None:
        self._stopping = True
        os.write(self._wake, b"s")

    def _on_hangup(self, *_: object) -> None:
        self._tell(signal.SIGHUP)


def _work(serve: Serve, sender: Connection) -> None:
    """Serve in a worker process, and tell the parent once: None when ready, or what is wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent passes it on

    def ready() -> None:
        sender.send(None)
        sender.close()
        parent = multiprocessing.parent_process()
        assert parent is not None
        loop = asyncio.get_running_loop()
        loop.add_reader(parent.sentinel, _stop, loop, parent.sentinel)

    try:
        serve(ready)
    except (ConfigError, DataError) as error:
        with suppress(OSError):  # closed, if it failed after it was ready
            sender.send(error)


def _stop(loop: asyncio.AbstractEventLoop, sentinel: int) -> None:
    """Stop this worker as its parent would have, which is gone."""
    loop.remove_reader(sentinel)
    signal.raise_signal(signal.SIGTERM)
