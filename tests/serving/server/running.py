"""`crossbatch serve` as a process, and a client that can send it anything."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping
    from pathlib import Path

PATIENCE = 1800.0  # seconds; a busy machine starts a Python slowly
# Requests of tests must not be refused because the machine is busy.
UNHURRIED = f"from crossbatch.serving.server import guard\nguard.REQUEST_SECONDS = {PATIENCE}"


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The message of an error, whose body has nothing else."""
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"status", "message"}
        assert self.json["error"]["status"] == self.status
        return str(self.json["error"]["message"])


class RunningServer:
    """A server on a free port.

    Args:
        bundle: What it serves.
        arguments: Further arguments of the command.
        before: Python statements to run in the process first, to shorten its limits, for example.
        env: Further environment variables.
    """

    def __init__(
        self, bundle: Path, *arguments: str, before: str = "", env: Mapping[str, str] | None = None
    ) -> None:
        program = f"{UNHURRIED}\n{before}\nfrom crossbatch.cli import main\nmain()"
        if "--timeout" not in arguments:
            arguments = (*arguments, "--timeout", str(PATIENCE))
        self._command = [
            sys.executable, "-c", program, "serve", str(bundle), "--port", "0", *arguments
        ]  # fmt: skip
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self.log: list[dict[str, Any]] = []
        self.port = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stderr=subprocess.PIPE, text=True, env=self._env
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            listening = self.wait_for_event("listening")
        except AssertionError:
            self.__exit__()
            raise
        self.port = int(listening["url"].rpartition(":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        if self.alive:
            self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def tell(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code, when it comes."""
        return self._process.wait(PATIENCE)

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request on a connection of its own; anything but bytes goes as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        sent = {} if body is None else {"Content-Type": "application/json"}
        sent |= headers or {}
        method = method or ("GET" if body is None else "POST")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def wait_for_event(self, name: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th event of this name in the log."""
        found = wait_until(lambda: self._events(name)[count - 1 : count], self._describe)
        return dict(found[0])

    def _events(self, name: str) -> list[dict[str, Any]]:
        if not self.alive and name != "stopped":
            self._reader.join(PATIENCE)
            assert [e for e in self.log if e["event"] == name], self._describe()
        return [entry for entry in self.log if entry["event"] == name]

    def _describe(self) -> str:
        return "\n".join(map(str, self.log[-20:]))

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                try:
                    self.log.append(json.loads(line))
                except ValueError:
                    self.log.append({"event": "plain", "text": line})


def wait_until(ready: Callable[[], Any], describe: Callable[[], str] = str) -> Any:
    """What `ready` returns, once that is true."""
    give_up = time.monotonic() + PATIENCE
    while not (found := ready()):
        assert time.monotonic() < give_up, f"waited in vain\n{describe()}"
        time.sleep(0.02)
    return found
