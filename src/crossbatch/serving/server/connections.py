"""Connections of the server: how many, how long a request may take to arrive, half-closed clients.

uvicorn with h11 parses HTTP: it reads a body by its length whatever the client proposes to upgrade
to, keeps trailers apart from headers, and answers pipelined requests one after the other.
(`benchmarks/http_servers.py` compares it with other servers.) This module adds time limits, without
which a client that sends single bytes, or never reads its answers, would hold a connection for
ever.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from crossbatch.serving.server.guard import MAX_HEAD_BYTES
from crossbatch.serving.server.messages import error_response

if TYPE_CHECKING:
    import asyncio

    from starlette.types import Receive, Scope, Send
    from uvicorn import Config
    from uvicorn.server import ServerState

MAX_CONNECTIONS = 1_024
RESERVED = 32  # connections beyond these: one quick request to /health, all else is refused
RESERVED_SECONDS = 1.0  # in which such a request must have arrived
RESERVED_FILES = 64  # that the server may open itself: a new bundle, for example
REQUEST_SECONDS = 10.0  # in which a request must have arrived
ANSWER_SECONDS = 30.0  # in which a client must read some of what it is sent
CROWDED = "too many connections; try again in a moment"
ARRIVING = (h11.IDLE, h11.SEND_BODY)  # states of a client whose request is not complete
REFUSALS = {
    400: "this is not a valid HTTP request",
    431: f"the request's head is larger than {MAX_HEAD_BYTES} bytes",
    501: "of transfer codings only `chunked` is understood",
}


def connection_limit() -> int:
    """How many clients may be connected: what the system's limit of open files has room for.

    The limit is raised as far as the system allows.
    """
    wanted = MAX_CONNECTIONS + RESERVED
    try:
        import resource

        used = len(list(Path("/dev/fd").iterdir())) + RESERVED_FILES
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < used + wanted:
            most = used + wanted if hard < 0 else min(hard, used + wanted)
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
                soft = most
            return max(8, min(MAX_CONNECTIONS, soft - used - RESERVED))
    except (ImportError, OSError):  # another system than Unix
        pass
    return MAX_CONNECTIONS


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol over h11 with limits of time and number."""

    limit = MAX_CONNECTIONS  # of connections; a server sets it before it starts

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of the "request", of the "answer"
        self._crowded = False  # this connection is one of the reserve
        self._half_closed = False  # the client has sent all it will send, and still reads

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request; in a crowd only /health is answered."""
        super().connection_made(transport)
        if len(self.connections) > self.limit + RESERVED:
            self._refuse(503, CROWDED)
            return
        if len(self.connections) > self.limit:
            self._crowded, self.app = True, self._health_only
        self._start_timer(RESERVED_SECONDS if self._crowded else None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers with the connection."""
        self._stop_timer("request")
        self._stop_timer("answer")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; a request must be complete in time."""
        if not self.transport.is_closing():  # not yet refused
            super().data_received(data)
            self._time_request()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Answer what a client asked for before it closed its side, then close ours."""
        self._half_closed = True
        return self._unanswered()

    def on_response_complete(self) -> None:
        """Turn to the next request that is here already, if there is one."""
        super().on_response_complete()
        if self._crowded or (self._half_closed and not self._unanswered()):
            self.transport.close()
        self._time_request()

    def pause_writing(self) -> None:
        """The client does not read: give it `ANSWER_SECONDS` to continue."""
        super().pause_writing()
        self._timers["answer"] = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stop_timer("answer")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what h11 refuses, which is called while its exception is handled."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        self._refuse(status if status in REFUSALS else 400, REFUSALS.get(status, REFUSALS[400]))

    def _should_upgrade(self) -> bool:
        """Never: HTTP/1.1 allows to ignore the proposal. Java's client makes it in each request."""
        return False

    def _unanswered(self) -> bool:
        cycle = self.cycle
        return cycle is not None and not (cycle.response_complete or cycle.more_body)

    def _time_request(self) -> None:
        """Let the timer run while a part of a request is here; an idle connection may wait."""
        if self.transport.is_closing() or self.conn.their_state not in ARRIVING:
            self._stop_timer("request")
        elif self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self._start_timer()

    def _start_timer(self, seconds: float | None = None) -> None:
        if "request" not in self._timers:
            self._timers["request"] = self.loop.call_later(
                seconds or REQUEST_SECONDS, self._refuse, 408, "the request did not arrive in time"
            )

    def _stop_timer(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()

    def _refuse(self, status: int, message: str) -> None:
        """Answer by ourselves, unless an answer has begun, and close the connection."""
        self._stop_timer("request")
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": {"status": status, "message": message}}).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            events = (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    async def _health_only(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application for connections of the reserve."""
        if scope["path"] == "/health":
            await self.config.loaded_app(scope, receive, send)
        else:
            response = error_response(503, CROWDED, {"Connection": "close", "Retry-After": "1"})
            await response(scope, receive, send)
