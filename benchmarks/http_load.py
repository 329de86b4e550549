"""A small HTTP load generator: keep-alive connections on a raw socket, JSON bodies made in advance.

Requests are sent on a fixed schedule, however slow the server is, and a latency counts from the
time at which its request was due: a server that stalls cannot hide the requests that had to wait.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LENGTH = b"content-length: "


@dataclass
class Load:
    """The answers of a load test."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    lost: int = 0

    def rate(self) -> float:
        """Good answers a second."""
        return self.statuses.get(200, 0) / self.seconds

    def quantile(self, share: float) -> float:
        """Latency in ms below which this share of the answers stayed."""
        ordered = sorted(self.latencies)
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    def __init__(self, client: _Client) -> None:
        self._client, self._buffer, self._needed = client, bytearray(), -1
        self.due: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base
        self._client.free(self)

    def send(self, request: bytes, due: float) -> None:
        self.due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._needed < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            start = self._buffer.find(LENGTH) + len(LENGTH)
            self._needed = end + 4 + int(self._buffer[start : self._buffer.index(b"\r", start)])
        if len(self._buffer) >= self._needed:
            status, due = int(self._buffer[9:12]), self.due
            assert due is not None
            self._buffer.clear()
            self._needed, self.due = -1, None
            self._client.free(self)
            self._client.answered(status, due)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(self)

    def close(self) -> None:
        self._transport.close()


class _Client:
    def __init__(self) -> None:
        self.load = Load()
        self._idle: deque[_Connection] = deque()
        self._backlog: deque[tuple[bytes, float]] = deque()
        self.under_way = 0
        self.tasks: set[asyncio.Task[None]] = set()  # a task without a reference may be collected
        self.on_answer: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None

    def ask(self, request: bytes, due: float) -> None:
        self.under_way += 1
        if self._idle:
            self._idle.popleft().send(request, due)
        else:
            self._backlog.append((request, due))

    def free(self, connection: _Connection) -> None:
        if self._backlog:
            connection.send(*self._backlog.popleft())
        else:
            self._idle.append(connection)

    def answered(self, status: int, due: float) -> None:
        self.under_way -= 1
        self.load.latencies.append(time.perf_counter() - due)
        self.load.statuses[status] = self.load.statuses.get(status, 0) + 1
        self.on_answer()

    def lost(self, connection: _Connection) -> None:
        if connection.due is not None:
            self.under_way -= 1
            self.load.lost += 1
        if connection in self._idle:
            self._idle.remove(connection)
        self.on_lost()


def post(path: str, body: bytes, *, host: str = "localhost") -> bytes:
    """The bytes of a POST request."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


def get(path: str, *, host: str = "localhost") -> bytes:
    """The bytes of a GET request."""
    return f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()


async def at_rate(
    port: int,
    requests: Sequence[bytes],
    *,
    rate: float,
    seconds: float,
    connections: int = 64,
    reconnect: bool = False,
) -> Load:
    """Send `rate` requests a second for `seconds`, evenly spaced, and wait for the answers.

    With `reconnect`, connections that the server closes are opened again; what was asked through
    them is lost.
    """
    client, opened = await _connect(port, connections)
    if reconnect:
        client.on_lost = partial(_reopen, client, port, opened)
    start = time.perf_counter()
    total = int(rate * seconds)
    for number in range(total):
        due = start + number / rate
        if (delay := due - time.perf_counter()) > 0:
            await asyncio.sleep(delay)
        client.ask(requests[number % len(requests)], due)
    await _drain(client)
    return _finish(client, opened, start)


async def at_once(
    port: int, requests: Sequence[bytes], *, seconds: float, connections: int = 64
) -> Load:
    """Keep every connection busy for `seconds`: how much the server can do at all."""
    client, opened = await _connect(port, connections)
    start = time.perf_counter()
    numbers = itertools.count()

    def again() -> None:
        if (now := time.perf_counter()) < start + seconds:
            client.ask(requests[next(numbers) % len(requests)], now)

    client.on_answer = again
    for _ in range(connections):
        again()
    await asyncio.sleep(seconds)
    await _drain(client)
    return _finish(client, opened, start)


async def _connect(port: int, connections: int) -> tuple[_Client, list[_Connection]]:
    client, loop = _Client(), asyncio.get_running_loop()
    opened = []
    for _ in range(connections):
        _, connection = await loop.create_connection(lambda: _Connection(client), "127.0.0.1", port)
        opened.append(connection)
    return client, opened


def _reopen(client: _Client, port: int, opened: list[_Connection]) -> None:
    loop = asyncio.get_running_loop()

    async def reopened() -> None:
        _, connection = await loop.create_connection(lambda: _Connection(client), "127.0.0.1", port)
        opened.append(connection)

    client.tasks.add(loop.create_task(reopened()))


async def _drain(client: _Client, patience: float = 30.0) -> None:
    give_up = time.perf_counter() + patience
    while client.under_way and time.perf_counter() < give_up:
        await asyncio.sleep(0.005)


def _finish(client: _Client, opened: list[_Connection], start: float) -> Load:
    client.load.seconds = time.perf_counter() - start
    client.load.lost += client.under_way
    client.on_lost = lambda: None
    for connection in opened:
        connection.due = None
        connection.close()
    return client.load
