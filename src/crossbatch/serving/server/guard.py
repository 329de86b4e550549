"""What a request may be: host name, token, size; `connections` limits their speed and number.

Without a token the server listens on loopback only, and answers to loopback names only: a web page
elsewhere that points its own name at 127.0.0.1 must not read the catalogue through the browser.
"""

from __future__ import annotations

import hmac
import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING

from crossbatch.serving.server.messages import error_response

if TYPE_CHECKING:
    from fastapi import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 256 * 1024  # a full history of long keys needs about half of it
# A body that is too large is read up to here and thrown away: a client that is cut off while it
# sends would never see the answer.
MAX_DRAINED_BYTES = 32 * MAX_BODY_BYTES
MAX_HEAD_BYTES = 32 * 1024  # request line and header fields together


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
