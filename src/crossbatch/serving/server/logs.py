"""What the server writes down as JSON lines: its log, and what was shown to whom (exposures).

log_event("reloaded", slot="main", version="4f1c")

Lines never wait for the file or the pipe that they go to: logs must not stop answers.

An exposure is a line for each list: time, request id, slot and version of the bundle, ids and
scores of items. Histories, user features and keys are not in it; `--log-histories` adds the
history.
"""

from __future__ import annotations

import json
import logging
import os
import select
import stat
import threading
import time
from collections import deque
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crossbatch.serving.server.answers import Answer
    from crossbatch.serving.server.messages import RecommendRequest
    from crossbatch.serving.server.run import ServeOptions

logger = logging.getLogger("crossbatch.serving")
MAX_WAITING = 10_000  # lines; some 2 MB
CLOSE_SECONDS = 5.0  # that the last lines get
STDOUT, STDERR = 1, 2  # file descriptors


class LineWriter:
    """Writes lines to a file descriptor in a thread of its own; `write` never blocks or raises.

    While the reader of a pipe is stuck or a disk is full, lines wait up to `MAX_WAITING`; further
    ones are dropped and counted, and the next line that can be written is preceded by one that says
    how many are missing.
    """

    def __init__(self, descriptor: int) -> None:
        self.dropped = 0  # lines lost since the start
        self._descriptor = descriptor
        self._waiting: deque[str] = deque()
        self._told = 0  # of the dropped, those that a line has spoken of
        self._arrived = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line that ends in a newline; drop it if too many wait."""
        if len(self._waiting) >= MAX_WAITING:
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


class JsonFormatter(logging.Formatter):
    """Formats a log record, its `fields` and its traceback as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line: dict[str, Any] = {
            "time": _iso_time(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_event(name: str, level: int = logging.INFO, **fields: object) -> None:
    """Log one event with its fields."""
    logger.log(level, name, extra={"fields": fields})


class LineHandler(logging.Handler):
    """Hands formatted records to a `LineWriter`, so that logging never waits."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self.writer = writer
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record."""
        self.writer.write(self.format(record) + "\n")

    def close(self) -> None:
        """Write what waits; later records are lost."""
        self.writer.close()
        super().close()


@contextmanager
def log_to_stderr(level: int = logging.INFO) -> Iterator[None]:
    """Send our events from `level` on, and uvicorn's warnings, to standard error as JSON."""
    handler = LineHandler(LineWriter(STDERR))
    for source, least in ((logger, level), (logging.getLogger("uvicorn.error"), logging.WARNING)):
        source.handlers, source.propagate = [handler], False
        source.setLevel(least)
    try:
        yield
    finally:
        handler.close()


def close_log() -> None:
    """Write the last lines now; for a process that is about to be ended by a signal."""
    for handler in logger.handlers:
        handler.close()


def log_request(request_id: str, method: str, path: str, status: int, seconds: float) -> None:
    """Write a request's line without `logging`, which would cost as much as parsing the request."""
    handlers = [each for each in logger.handlers if isinstance(each, LineHandler)]
    if handlers and logger.isEnabledFor(logging.INFO):
        handlers[0].writer.write(
            f'{{"time":"{_iso_time(time.time())}","level":"{"error" if status >= 500 else "info"}",'
            f'"event":"request","id":"{request_id}","method":{json.dumps(method)},'
            f'"path":{json.dumps(path)},"status":{status},"ms":{1e3 * seconds:.2f}}}\n'
        )


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class Exposures:
    """Appends a line for each list that was shown; never waits for the disk."""

    def __init__(self, options: ServeOptions) -> None:
        assert options.exposure_log is not None
        self._histories = options.log_histories
        self._descriptor = open_log(options.exposure_log)
        self._writer = LineWriter(self._descriptor)

    def write(self, query: RecommendRequest, answer: Answer, request: str, *, shadow: bool) -> None:
        """Queue the line of one answer."""
        assert answer.served is not None
        bundle = answer.served.bundle
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": request,
            "slot": query.bundle,
            "bundle": bundle.version,
            "items": bundle.item_keys(answer.item_ids),
            "scores": [round(score, 6) for score in answer.scores],
        }
        if shadow:
            line["shadow"] = True
        if self._histories:
            line["history"] = query.history
        self._writer.write(json.dumps(line) + "\n")  # ASCII: stdout may be a terminal

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()
        os.close(self._descriptor)


def open_log(path: Path) -> int:
    """Open a file to append lines to, and end a line that a kill has cut short; "-" is stdout.

    Raises:
        ConfigError: If it cannot be written.
    """
    if str(path) == "-":
        return os.dup(STDOUT)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise ConfigError(
            f"--exposure-log {path} cannot be written ({error.strerror}): choose another file"
        ) from None
    facts = os.fstat(descriptor)
    lines = stat.S_ISREG(facts.st_mode) and facts.st_size > 0
    if lines and os.pread(descriptor, 1, facts.st_size - 1) != b"\n":
        os.write(descriptor, b"\n")
    return descriptor
