"""Around every request: a line in the log, the measures, and the headers that protect browsers."""

from __future__ import annotations

import re
import secrets
import time
from typing import TYPE_CHECKING

from crossbatch.serving.server.json_log import log, request_line
from crossbatch.serving.server.problems import INTERNAL, problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from crossbatch.serving.server.metrics import Metrics

# The page loads its own files and nothing else, runs no inline script, and cannot be framed.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
CLIENT_LEFT = 499  # in the log only: there was nobody to answer
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Observe:
    """The outermost ASGI layer.

    Args:
        app: What is observed.
        metrics: Where to count.
        paths: Known paths; all others count as one, or strangers would fill the registry.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and write down how it ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8).encode()
        status = CLIENT_LEFT

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [*HEADERS, (b"x-request-id", request_id)]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        try:
            await self._app(scope, receive, observed)
        except Exception:  # a fault of ours: the traceback is for the log alone
            log.exception("fault")
            if status == CLIENT_LEFT:
                await problem(500, INTERNAL)(scope, receive, observed)
        finally:
            self._note(scope, status, time.perf_counter() - started, request_id)

    def _note(self, scope: Scope, status: int, seconds: float, request_id: bytes) -> None:
        path = scope["path"]
        label = path if path in self._paths else "other"
        self._metrics.requests.labels(label, status).inc()
        self._metrics.seconds.labels(label).observe(seconds)
        request_line(request_id.decode(), scope["method"], path, status, seconds)
