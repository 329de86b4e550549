"""Who may ask, and how much: host name, token, size of the body.

Without a token the server listens on loopback only, and answers to loopback names only: a web page
elsewhere that points its own name at 127.0.0.1 must not read the catalogue through the browser.
"""

from __future__ import annotations

import hmac
import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING

from crossbatch.serving.server.limits import MAX_BODY_BYTES
from crossbatch.serving.server.problems import problem

if TYPE_CHECKING:
    from fastapi import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# A body that is too large is read up to here and thrown away: a client that is cut off while it
# sends would never see the answer.
MAX_DRAINED_BYTES = 32 * MAX_BODY_BYTES


class TooLarge(Exception):  # noqa: N818 - says what the body is
    """The body is larger than `MAX_BODY_BYTES`."""


class Guard:
    """ASGI middleware in front of the application.

    Args:
        app: What is guarded.
        token: What a request must bear, or None.
        open_paths: Paths that need no token; they tell nothing of the bundle.
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
        scope["authorized"] = self._authorized(headers)
        refusal = self._refusal(scope, headers)
        if refusal is None and (b"content-length" in headers or b"transfer-encoding" in headers):
            try:
                body = await _read(receive)
            except TooLarge:
                message = f"the body is larger than {MAX_BODY_BYTES} bytes"
                refusal = problem(413, message, {"Connection": "close"})
            else:
                if body is None:  # the client has left
                    return
                receive = _replay(body, receive)
        await (refusal or self._app)(scope, receive, send)

    def _authorized(self, headers: dict[bytes, bytes]) -> bool:
        # Compared in constant time: its duration must not tell how much of a guess was right.
        return self._token is None or hmac.compare_digest(
            headers.get(b"authorization", b""), self._token
        )

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
        if len(headers) < len(scope["headers"]) and _repeated(scope["headers"]):
            return problem(400, "the request has a Host or an Authorization twice")
        if self._token is None and not is_loopback(_name(headers.get(b"host", b""))):
            return problem(421, "without a token this server answers to localhost only")
        if not scope["authorized"] and scope["path"] not in self._open_paths:
            message = "this server asks for a token: send `Authorization: Bearer …`"
            return problem(401, message, {"WWW-Authenticate": "Bearer"})
        return None


def _repeated(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether one of the headers that decide comes twice: a proxy may have read the other one."""
    names = [name for name, _ in headers]
    return any(names.count(name) > 1 for name in (b"host", b"authorization"))


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether a name or an address leads to this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(host: bytes) -> str:
    """The host name of a Host header, without port and brackets."""
    text = host.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


async def _read(receive: Receive) -> bytes | None:
    """The whole body, or None if the client left before its end."""
    body = bytearray()
    received, more = 0, True
    while more and received <= MAX_DRAINED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        received += len(piece)
        if received <= MAX_BODY_BYTES:
            body += piece
        more = message.get("more_body", False)
    if received > MAX_BODY_BYTES:
        raise TooLarge
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body at once, and then what the connection says."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again
