"""Slow clients, slow answers, too many requests at once, shutdown."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .running import PATIENCE, RunningServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .running import Reply

# Histories with "slow" are not answered while the gate, a file, exists.
GATE = """
import os, time
from crossbatch.serving import Bundle
from crossbatch.serving.server import guard, run
run.SHUTDOWN_SECONDS = 600
known = Bundle.known
def slow(self, histories):
    if any("slow" in history for history in histories):
        while os.path.exists(os.environ["GATE"]):
            time.sleep(0.01)
    return known(self, histories)
Bundle.known = slow
"""
IMPATIENT = f"""{GATE}
guard.REQUEST_SECONDS = 2.0
guard.ANSWER_SECONDS = run.ANSWER_SECONDS = 1.0
"""
PATIENT = f"{GATE}\nguard.MAX_CONNECTIONS = 40; guard.RESERVED = 3"
HEAD = b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def gate_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate") / "closed"


@pytest.fixture
def gate(gate_path: Path) -> Iterator[Path]:
    """A closed gate; `unlink` opens it."""
    gate_path.touch()
    yield gate_path
    gate_path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def impatient(youtube_path: Path, gate_path: Path) -> Iterator[RunningServer]:
    """Requests must arrive within two seconds, answers must be ready within two."""
    env = {"GATE": str(gate_path)}
    with RunningServer(youtube_path, "--timeout", "2", before=IMPATIENT, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def patient(youtube_path: Path, gate_path: Path) -> Iterator[RunningServer]:
    """At most 40 connections and 3 waiting requests, without time limits."""
    env, arguments = {"GATE": str(gate_path)}, ("--max-queue", "3", "--timeout", "600")
    with RunningServer(youtube_path, *arguments, before=PATIENT, env=env) as running:
        yield running


def read(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as stream:
        return stream.read()


def is_healthy(server: RunningServer) -> bool:
    try:
        return server.ask("/health").status == 200
    except OSError:
        return False


def measured(server: RunningServer, name: str) -> float:
    lines = server.ask("/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def answers(server: RunningServer, requests: list[bytes]) -> list[bytes]:
    """The answers to requests sent at once, each on a connection of its own, read one by one.

    Empty if a connection was reset: on a busy machine the time limit may have passed before the
    request was sent.
    """
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        connections = [stack.enter_context(server.connect()) for _ in requests]
        for connection, request in zip(connections, requests, strict=True):
            connection.sendall(request)
        wait_until(lambda: is_healthy(server))
        return [read(connection) for connection in connections]
    return []


def test_slow_clients_are_sent_away_and_others_are_answered(impatient: RunningServer) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: local"
    body = HEAD + b'Content-Length: 1000\r\n\r\n{"history": ['
    requests = [b""] * 5 + [head] * 5 + [body]
    for answer in wait_until(lambda: answers(impatient, requests)):
        assert answer.startswith(b"HTTP/1.1 408 ")
    # Refused at once, but its body never ends.
    unread = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123"
    (answer,) = wait_until(lambda: answers(impatient, [unread]))
    assert not answer.startswith(b"HTTP/1.1 2")
    wait_until(lambda: is_healthy(impatient))


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such limit")
def test_bug_a_client_that_never_reads_was_kept_for_ever(impatient: RunningServer) -> None:
    def is_reset() -> bool:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # as little as the kernel allows
        client.connect(("127.0.0.1", impatient.port))
        client.sendall(10 * b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client_port = client.getsockname()[1]
        # The client notices only when it reads; the kernel lists established connections.
        established = f":{impatient.port:04X} 0100007F:{client_port:04X} 01 "
        wait_until(lambda: established not in Path("/proc/net/tcp").read_text())
        try:
            refused = read(client).startswith(b"HTTP/1.1 408 ")
        except ConnectionResetError:
            return True
        assert refused  # the machine was too slow to send the requests in time: try again
        return False

    wait_until(is_reset)


def test_an_idle_connection_may_be_used_again(impatient: RunningServer) -> None:
    """The time limit is for a request; a client may pause between two of them."""

    def used_twice() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", impatient.port, timeout=PATIENCE)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.connect()
            first = connection.sock
            connection.request("GET", "/health")
            connection.getresponse().read()
            time.sleep(2.5)  # longer than a request may take
            connection.request("GET", "/health")
            healthy = connection.getresponse().read().startswith(b'{"status":"ok"')
            return healthy and connection.sock is first
        return False

    wait_until(used_twice)


def test_an_answer_that_comes_too_late_is_a_timeout(impatient: RunningServer, gate: Path) -> None:
    reply = wait_until(lambda: _unless_late(impatient))
    assert reply.status == 504
    assert "too long" in reply.message
    gate.unlink()
    wait_until(lambda: (reply := _unless_late(impatient, "m1")) and reply.status == 200)


def _unless_late(server: RunningServer, item: str = "slow") -> Reply | None:
    """The reply to a query, unless the machine was too slow to send it in time."""
    with contextlib.suppress(OSError):
        reply = server.ask("/recommend", {"history": [item]})
        return None if reply.status == 408 else reply
    return None


def test_many_requests_in_one_go_are_answered_one_after_the_other(patient: RunningServer) -> None:
    flood = patient.connect()
    flood.sendall(1_000 * (HEALTH + b"\r\n") + HEALTH + b"Connection: close\r\n\r\n")
    assert read(flood).count(b"HTTP/1.1 200") == 1_001


def test_in_a_crowd_health_is_still_answered(patient: RunningServer) -> None:
    def statuses(path: str) -> set[bytes]:
        """Answers to those who come when 40 are here."""
        late = [patient.connect() for _ in range(3)]
        for connection in late:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n".encode())
            connection.sendall(b"Connection: close\r\n\r\n")
        return {read(connection)[9:12] for connection in late}

    wait_until(lambda: is_healthy(patient))
    crowd = [patient.connect() for _ in range(40)]
    wait_until(lambda: statuses("/items") == {b"503"})
    wait_until(lambda: statuses("/health") == {b"200"})
    reserve = [patient.connect() for _ in range(10)]
    turned_away = [answer for connection in reserve[3:] if (answer := read(connection))]
    assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in turned_away)
    for connection in [*crowd, *reserve]:
        connection.close()
    wait_until(lambda: patient.ask("/items").status == 200)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files")
def test_bug_clients_could_take_all_file_descriptors(youtube_path: Path) -> None:
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))"
    with RunningServer(youtube_path, before=few) as server:
        crowd = []
        for _ in range(200):
            crowd.append(server.connect())
            assert server.alive
        # The last ones were turned away, and places of the reserve become free for /health.
        wait_until(lambda: is_healthy(server))
        server.tell(signal.SIGHUP)  # files can still be opened
        assert server.wait_for_event("reloaded")
        for connection in crowd:
            connection.close()


@pytest.mark.parametrize("sink", ["/dev/full", "unread pipe"])
def test_bug_a_log_that_nobody_takes_stopped_the_server(youtube_path: Path, sink: str) -> None:
    """Of the pipe nothing is read but the port; it holds 64 KB, which 1,000 requests fill."""
    program = "from crossbatch.cli import main\nmain()"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", program, "serve", str(youtube_path), "--port", str(port)]
    with contextlib.ExitStack() as stack:
        out = subprocess.PIPE
        if sink == "/dev/full":
            out = stack.enter_context(Path(sink).open("w"))
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            server = RunningServer(youtube_path)
            server.port = port

            def answers() -> bool:
                assert process.poll() is None
                return is_healthy(server)

            wait_until(answers)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            with contextlib.closing(connection):
                for _ in range(1_000):
                    connection.request("GET", "/health")
                    assert connection.getresponse().read()
            process.terminate()
            assert process.wait(PATIENCE) in {0, -signal.SIGTERM}
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def test_a_full_queue_says_when_to_come_back(patient: RunningServer, gate: Path) -> None:
    replies: list[Reply] = []

    def ask() -> None:
        replies.append(patient.ask("/recommend", {"history": ["slow"], "k": 1}))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(replies) >= 6)  # three are in the search, three wait at most
    gate.unlink()
    for thread in threads:
        thread.join()
    statuses = [reply.status for reply in replies]
    assert set(statuses) == {200, 503}
    for reply in replies:
        if reply.status == 503:
            assert int(reply.headers["retry-after"]) >= 1
            assert "again" in reply.message
    assert measured(patient, "crossbatch_overloaded_total") == statuses.count(503)


def test_health_answers_while_a_search_is_under_way(patient: RunningServer, gate: Path) -> None:
    before = measured(patient, "crossbatch_batch_size_count")
    slow = threading.Thread(target=patient.ask, args=("/recommend", {"history": ["slow"]}))
    slow.start()
    wait_until(lambda: measured(patient, "crossbatch_batch_size_count") > before)
    assert patient.ask("/health").status == 200
    assert slow.is_alive()
    gate.unlink()
    slow.join()


def test_shutdown_answers_what_is_under_way(youtube_path: Path, gate: Path) -> None:
    body = json.dumps({"history": ["slow", "m1"], "k": 2}).encode()
    arguments, env = ("--timeout", "600"), {"GATE": str(gate)}
    with RunningServer(youtube_path, *arguments, before=PATIENT, env=env) as server:
        connections = [server.connect() for _ in range(3)]
        for connection in connections:
            connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        parts = ("crossbatch_batch_size_sum", "crossbatch_queue_length")
        wait_until(lambda: sum(measured(server, part) for part in parts) == 3)
        server.tell(signal.SIGTERM)
        server.wait_for_event("stopping")
        gate.unlink()
        for connection in connections:
            answer = read(connection)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["items"]) == 2
        assert server.wait() in {0, -signal.SIGTERM}
        with pytest.raises(OSError):
            server.connect()
    assert server.log[-1]["event"] == "stopped"
