"""uvicorn's HTTP protocol with the bounds that it leaves open: slow, endless, too many.

A client that opens connections and lets bytes drip, or never reads its answers, would otherwise
hold each of them for ever; one that sends thousands of requests in one go would fill the memory.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from crossbatch.serving.server.limits import MAX_CONNECTIONS, MAX_HEAD_BYTES, MAX_PIPELINED

if TYPE_CHECKING:
    import asyncio

    from uvicorn import Config
    from uvicorn.server import ServerState

REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # in which a client must read some of what it is sent


class BoundedProtocol(HttpToolsProtocol):
    """One client's connection: a request must arrive whole within `REQUEST_SECONDS`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._head_bytes: int | None = 0  # None once the head is whole

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first request, or turn the client away."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(503, "too many connections; try again in a moment")
        else:
            self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock with the connection."""
        self._stop_clock()
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of an unfinished head."""
        if self.transport.is_closing():  # refused: what still arrives is of no interest
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"the request's head is larger than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        """Start the clock of a further request on the same connection."""
        super().on_message_begin()
        self._start_clock()

    def on_headers_complete(self) -> None:
        """The head is whole: from here on the application counts."""
        self._head_bytes = None
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole: from here on the application watches the time."""
        self._stop_clock()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client does not read: it gets some time to begin."""
        super().pause_writing()
        self._unread = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stop_waiting()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP at all."""
        self._refuse(400, "this is not a valid HTTP request")

    def _start_clock(self) -> None:
        if self._head_bytes is None:
            self._head_bytes = 0
        if self._timer is None:
            self._timer = self.loop.call_later(
                REQUEST_SECONDS, self._refuse, 408, "the request did not arrive in time"
            )

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _refuse(self, status: int, message: str) -> None:
        self._stop_clock()
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
