r"""Lines to a file or a pipe without ever waiting for it: logs must not stop answers.

    writer = LineWriter(2)                  # standard error
    writer.write("a line\n")               # returns at once, whatever becomes of the line
    writer.close()

A thread writes what has collected. While the reader of a pipe is stuck or a disk is full, lines
wait up to a limit; further ones are dropped and counted, and the next line that can be written is
preceded by one that says how many are missing.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_WAITING = 10_000  # lines; some 2 MB
CLOSE_SECONDS = 5.0  # that the last lines get


class LineWriter:
    """Writes lines to a file descriptor in a thread of its own; `write` never blocks or raises."""

    def __init__(self, descriptor: int, *, max_waiting: int = MAX_WAITING) -> None:
        self.dropped = 0  # lines lost since the start
        self._descriptor, self._max_waiting = descriptor, max_waiting
        self._waiting: deque[str] = deque()
        self._told = 0  # of the dropped, those that a line has spoken of
        self._arrived = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line that ends in a newline; drop it if too many wait."""
        if len(self._waiting) >= self._max_waiting:
            self.dropped += 1
            return
        self._waiting.append(line)
        self._arrived.set()

    def close(self) -> None:
        """Write what waits, as far as that is possible within `CLOSE_SECONDS`."""
        self._closing = True
        self._arrived.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                self._write_some()
            if self._closing:
                return

    def _write_some(self) -> None:
        """Write all that waits now; what cannot be written is dropped."""
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        missing = self.dropped - self._told
        if missing:
            lines.insert(0, f'{{"level":"warning","event":"lines dropped","lines":{missing}}}\n')
        try:
            for data in _chunks(lines):
                while data:
                    data = data[os.write(self._descriptor, data) :]
            self._told += missing
        except OSError:  # a full disk, a closed pipe
            self.dropped += len(lines) - bool(missing)


def _chunks(lines: list[str]) -> Iterator[bytes]:
    """Whole lines, as many as a pipe takes in one piece: other processes may write to it too."""
    chunk = b""
    for line in lines:
        data = line.encode("utf-8", "replace")
        if chunk and len(chunk) + len(data) > select.PIPE_BUF:
            yield chunk
            chunk = b""
        chunk += data
    yield chunk
