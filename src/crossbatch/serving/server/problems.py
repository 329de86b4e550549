"""Every answer but a good one: `{"error": {"status": 422, "message": "k: …"}}`, and nothing more.

Messages speak of the request; what went wrong inside is for the log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from crossbatch.errors import ConfigError
from crossbatch.serving.server.batching import Overloaded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI, Request

RETRY_SECONDS = 1
OVERLOADED = "the server is busy; try again in a second"
TOO_LATE = "the answer took too long; try again, or ask for less"
INTERNAL = "something went wrong inside the server; its log tells more"
MESSAGES = {404: "there is nothing here", 405: "this path does not take that method"}


def problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as JSON."""
    body = json.dumps({"error": {"status": status, "message": message}}, ensure_ascii=False)
    return Response(
        body.encode("utf-8", "replace"), status, dict(headers or {}), media_type="application/json"
    )


def install(app: FastAPI) -> None:
    """Answer all exceptions of `app` in the same form."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ConfigError, _mistake)
    app.add_exception_handler(Overloaded, _overloaded)
    app.add_exception_handler(TimeoutError, _too_late)
    app.add_exception_handler(Exception, _fault)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return problem(400, f"the body is not valid JSON: {first['ctx']['error']}")
    # ("body", "history", 3) -> history.3; the value itself is not repeated
    where = ".".join(str(part) for part in first["loc"][1:])
    return problem(422, f"{where}: {first['msg']}" if where else str(first["msg"]))


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = MESSAGES.get(error.status_code, error.detail)
    if error.status_code == 404 and request.scope.get("route") is not None:
        message = error.detail  # a known path: it is the item that was not found
    return problem(error.status_code, message, error.headers)


def _mistake(request: Request, error: Exception) -> Response:
    return problem(422, str(error))


def _overloaded(request: Request, error: Exception) -> Response:
    return problem(503, OVERLOADED, {"Retry-After": str(RETRY_SECONDS)})


def _fault(request: Request, error: Exception) -> Response:
    return problem(500, INTERNAL)


def _too_late(request: Request, error: Exception) -> Response:
    return problem(504, TOO_LATE)
