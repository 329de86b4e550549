"""What a client may do: host name, token, size and speed of requests, number of connections.

Without a token the server listens on loopback only, and answers to loopback names only: a web page
elsewhere that points its own name at 127.0.0.1 must not read the catalogue through the browser.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

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
MAX_PIPELINED = 16  # requests that a connection may send before the first is answered
REQUEST_SECONDS = 10.0  # in which a request must have arrived
ANSWER_SECONDS = 30.0  # in which a client must read some of what it is sent


class Guard:
    """ASGI layer that refuses requests by host, token or size before the application sees them.

    `open_paths` need no token; they tell nothing of the bundle.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, open_paths: frozenset[str]) -> None:
        self._app, self._open_paths = app, open_paths
        self._token = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request here, pass on all others."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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
        # A proxy in front may have read the other one of two.
        names = [name for name, _ in scope["headers"]]
        if names.count(b"host") > 1 or names.count(b"authorization") > 1:
            return error_response(400, "the request has a Host or an Authorization twice")
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


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the limits that it lacks.

    Otherwise a client that sends single bytes, or never reads its answers, would hold a connection
    for ever, and one that sends thousands of requests at once would fill the memory.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of the "request", of the "answer"
        self._head_bytes: int | None = 0  # None once the head is complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request, or turn the client away."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(503, "too many connections; try again in a moment")
        else:
            self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers with the connection."""
        self._stop_timer("request")
        self._stop_timer("answer")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of an unfinished head."""
        if self.transport.is_closing():  # already refused
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"the request's head is larger than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        """Start the timer of a further request on the same connection."""
        super().on_message_begin()
        self._start_request_timer()

    def on_headers_complete(self) -> None:
        """Hand the head to the application, unless too many requests wait on this connection."""
        self._head_bytes = None
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the timer: from here on the application watches the time."""
        self._stop_timer("request")
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client does not read: give it `ANSWER_SECONDS` to continue."""
        super().pause_writing()
        self._timers["answer"] = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stop_timer("answer")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP at all."""
        self._refuse(400, "this is not a valid HTTP request")

    def _start_request_timer(self) -> None:
        if self._head_bytes is None:
            self._head_bytes = 0
        if "request" not in self._timers:
            self._timers["request"] = self.loop.call_later(
                REQUEST_SECONDS, self._refuse, 408, "the request did not arrive in time"
            )

    def _stop_timer(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()

    def _refuse(self, status: int, message: str) -> None:
        self._stop_timer("request")
        if self.transport.is_closing():
            return
        if self.cycle is not None and self.cycle.response_started:
            self.transport.close()  # answered already, though the body never ended
            return
        body = json.dumps({"error": {"status": status, "message": message}}).encode()
        self.transport.write(
            STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        self.transport.close()
