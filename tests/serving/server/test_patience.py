"""Slow clients, slow answers, too many at once: nobody is kept waiting for ever, nobody is lost."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from .running import RunningServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .running import Reply

# A server without patience, and two items that take it long to answer.
IMPATIENT = """
import time
from crossbatch.serving.server import http_protocol, guard
from crossbatch.serving import Bundle
http_protocol.REQUEST_SECONDS = 0.5
http_protocol.ANSWER_SECONDS = 1.0
http_protocol.MAX_CONNECTIONS = 40
known = Bundle.known
def slow(self, histories):
    everything = [key for history in histories for key in history]
    time.sleep(0.75 * ("slow" in everything) + 3 * ("glacial" in everything))
    return known(self, histories)
Bundle.known = slow
"""
HEAD = b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


ARGUMENTS = ("--max-queue", "3", "--timeout", "2")


@pytest.fixture(scope="module")
def impatient(youtube_path: Path) -> Iterator[RunningServer]:
    with RunningServer(youtube_path, *ARGUMENTS, before=IMPATIENT) as running:
        yield running


def read(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as stream:
        return stream.read()


def test_slow_clients_are_sent_away_and_others_do_not_notice(impatient: RunningServer) -> None:
    silent = [impatient.connect() for _ in range(5)]
    dripping = [impatient.connect() for _ in range(5)]
    for connection in dripping:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: local")
    bodiless = impatient.connect()
    bodiless.sendall(HEAD + b'Content-Length: 1000\r\n\r\n{"history": [')
    assert impatient.ask("/health").status == 200
    for connection in (*silent, *dripping, bodiless):
        assert read(connection).startswith(b"HTTP/1.1 408 ")
    answered = impatient.connect()  # refused at once, but its body never ends
    answered.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123")
    assert not read(answered).startswith(b"HTTP/1.1 2")
    assert impatient.ask("/health").status == 200


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such limit")
def test_bug_a_client_that_never_reads_was_kept_for_ever(impatient: RunningServer) -> None:
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # as little as the kernel allows
    deaf.connect(("127.0.0.1", impatient.port))
    deaf.sendall(10 * b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    time.sleep(5)
    deaf.settimeout(30)
    with pytest.raises(ConnectionResetError):
        read(deaf)


def test_bug_requests_without_end_in_one_go_filled_the_memory(impatient: RunningServer) -> None:
    flood = impatient.connect()
    with contextlib.suppress(OSError):  # cut off while it sends, or while it reads
        flood.sendall(5_000 * b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read(flood).count(b"HTTP/1.1 200") < 5_000
    few = impatient.connect()
    few.sendall(9 * b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    few.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert read(few).count(b"HTTP/1.1 200") == 10


def test_an_idle_connection_may_be_used_again(impatient: RunningServer) -> None:
    """The clock is that of a request; between two of them a client may take its time."""
    connection = http.client.HTTPConnection("127.0.0.1", impatient.port)
    connection.connect()
    first = connection.sock
    for _ in range(2):
        connection.request("GET", "/health")
        assert connection.getresponse().read().startswith(b'{"status":"ok"')
        time.sleep(0.7)
    assert connection.sock is first
    connection.close()


def test_too_many_connections(impatient: RunningServer) -> None:
    crowd = [impatient.connect() for _ in range(45)]
    turned_away = [read(connection) for connection in crowd[40:]]
    assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in turned_away)
    for connection in crowd[:40]:
        connection.close()
    assert wait_until(lambda: _status(impatient) == 200)


def _status(server: RunningServer) -> int:
    try:
        return server.ask("/health").status
    except OSError:
        return 0


def test_a_full_queue_says_when_to_come_back(impatient: RunningServer) -> None:
    replies: list[Reply] = []

    def ask(history: list[str]) -> None:
        replies.append(impatient.ask("/recommend", {"history": history, "k": 1}))

    threads = [threading.Thread(target=ask, args=(["slow"],)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = [reply.status for reply in replies]
    assert set(statuses) == {200, 503}
    for reply in replies:
        if reply.status == 503:
            assert int(reply.headers["retry-after"]) >= 1
            assert "again" in reply.message
    assert f"crossbatch_overloaded_total {float(statuses.count(503))}" in (
        impatient.ask("/metrics").body.decode()
    )


def test_health_answers_while_a_search_is_under_way(impatient: RunningServer) -> None:
    slow = threading.Thread(target=impatient.ask, args=("/recommend", {"history": ["slow"]}))
    slow.start()
    assert impatient.ask("/health").status == 200
    assert slow.is_alive()
    slow.join()


def test_an_answer_that_comes_too_late_is_a_timeout(impatient: RunningServer) -> None:
    reply = impatient.ask("/recommend", {"history": ["glacial"]})
    assert reply.status == 504
    assert "too long" in reply.message
    wait_until(lambda: impatient.ask("/recommend", {"history": ["m1"]}).status == 200)


def test_shutdown_answers_what_is_under_way(youtube_path: Path) -> None:
    body = json.dumps({"history": ["slow", "m1"], "k": 2}).encode()
    with RunningServer(youtube_path, before=IMPATIENT) as server:
        connections = [server.connect() for _ in range(3)]
        for connection in connections:
            connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        server.ask("/health")  # all of them have been read by now
        server.tell(signal.SIGTERM)
        for connection in connections:
            answer = read(connection)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["items"]) == 2
        assert server.wait() in {0, -signal.SIGTERM}
        with pytest.raises(OSError):
            server.connect()
    assert server.log[-1]["event"] == "stopped"
