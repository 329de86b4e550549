"""What clients may do: host name, token and size of requests, speed and number of connections.

Without a token the server listens on loopback only, and answers to loopback names only: a web page
elsewhere that points its own name at 127.0.0.1 must not read the catalogue through the browser.

uvicorn with h11 parses HTTP: it reads a body by its length whatever the client proposes to upgrade
to, keeps trailers apart from headers, and answers pipelined requests one after the other.
(`benchmarks/http_servers.py` compares it with other servers.) `BoundedProtocol` adds time limits,
without which a client that sends single bytes, or never reads its answers, would hold a connection
for ever.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from crossbatch.serving.server.messages import error_response

if TYPE_CHECKING:
    import asyncio

    from fastapi import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn import Config
    from uvicorn.server import ServerState

MAX_BODY_BYTES = 256 * 1024  # a full history of long keys needs about half of it
# A body that is too large is read up to here and thrown away: a client that is cut off while it
# sends would never see the answer.
MAX_DRAINED_BYTES = 32 * MAX_BODY_BYTES
MAX_HEAD_BYTES = 32 * 1024  # request line and header fields together
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


class Guard:
    """ASGI layer that refuses requests by host, token or size before the application sees them.

    `open_paths` need no token; they tell nothing of the bundle.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, open_paths: frozenset[str]) -> None:
        self._app, self._open_paths = app, open_paths
        self._token = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request here, pass on all others; a HEAD is a GET without its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # in a copy: by its own scope the server leaves the body out
            scope = {**scope, "method": "GET"}
        headers = dict(scope["headers"])
        # Compared in constant time: its duration must not tell how much of a guess was right.
        scope["authorized"] = self._token is None or hmac.compare_digest(
            headers.get(b"authorization", b""), self._token
        )
        refusal = self._refusal(scope, headers)
        if refusal is None and (b"content-length" in headers or b"transfer-encoding" in headers):
            body, size = await _read_body(receive)
            if body is None:  # the client has left
                return
            if size > MAX_BODY_BYTES:
                message = f"the body is larger than {MAX_BODY_BYTES} bytes"
                refusal = error_response(413, message, {"Connection": "close"})
            receive = _replay(body, receive)
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
        # The server bounds heads that arrive in pieces; this one may have come as a whole.
        fields = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if fields + len(scope["raw_path"]) + len(scope["query_string"]) > MAX_HEAD_BYTES:
            message = f"the request's head is larger than {MAX_HEAD_BYTES} bytes"
            return error_response(431, message, {"Connection": "close"})
        if scope["http_version"] not in ("1.0", "1.1"):
            return error_response(505, "this server speaks HTTP/1.1", {"Connection": "close"})
        # A proxy in front may have read the other one of two.
        names = [name for name, _ in scope["headers"]]
        if names.count(b"host") > 1 or names.count(b"authorization") > 1:
            return error_response(400, "the request has a Host or an Authorization twice")
        if b"content-length" in headers and b"transfer-encoding" in headers:
            message = "the request has a Content-Length and a Transfer-Encoding: send one of them"
            return error_response(400, message, {"Connection": "close"})
        if self._token is None and not is_loopback(_host_name(headers.get(b"host", b""))):
            return error_response(421, "without a token this server answers to localhost only")
        if not scope["authorized"] and scope["path"] not in self._open_paths:
            message = "this server asks for a token: send `Authorization: Bearer …`"
            return error_response(401, message, {"WWW-Authenticate": "Bearer"})
        return None


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether a name or an address leads to this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(host: bytes) -> str:
    """The host name of a Host header, without port and brackets."""
    text = host.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


async def _read_body(receive: Receive) -> tuple[bytes | None, int]:
    """The first `MAX_BODY_BYTES` of a body and its size; None if the client left before its end."""
    body, size, more = bytearray(), 0, True
    while more and size <= MAX_DRAINED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None, size
        piece = message.get("body", b"")
        size += len(piece)
        if size <= MAX_BODY_BYTES:
            body += piece
        more = message.get("more_body", False)
    return bytes(body), size


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the whole body first, and then what the connection says."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


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
