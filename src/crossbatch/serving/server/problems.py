"""Every answer but a good one: `{"error": {"status": 422, "message": "k: …"}}`, and nothing more.

Messages speak of the request; what went wrong inside is for the log.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from crossbatch.errors import ConfigError
from crossbatch.serving.server.answers import UnknownItem
from crossbatch.serving.server.batching import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastapi import FastAPI, Request

RETRY_SECONDS = 1
OVERLOADED = "the server is busy; try again in a second"
TOO_LATE = "the answer took too long; try again, or ask for less"
INTERNAL = "something went wrong inside the server; its log tells more"
UNSAID = {404: "there is nothing here", 405: "this path does not take that method"}


def problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as JSON."""
    body = json.dumps({"error": {"status": status, "message": message}}, ensure_ascii=False)
    return Response(
        body.encode("utf-8", "replace"), status, dict(headers or {}), media_type="application/json"
    )


def answer(error: Exception) -> Response:
    """The answer to a request that ended with `error`."""
    for kind, answer_to in ANSWERS.items():
        if isinstance(error, kind):
            return answer_to(error)
    return problem(500, INTERNAL)


def install(app: FastAPI) -> None:
    """Let `app` answer all exceptions in this form."""

    def handle(request: Request, error: Exception) -> Response:
        return answer(error)

    for kind in (*ANSWERS, Exception):
        app.add_exception_handler(kind, handle)


def _invalid(error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return problem(400, f"the body is not valid JSON: {first['ctx']['error']}")
    # ("body", "history", 3) -> history.3; the value itself is not repeated
    where = ".".join(str(part) for part in first["loc"][1:])
    return problem(422, f"{where}: {first['msg']}" if where else str(first["msg"]))


def _http(error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    unsaid = error.detail == HTTPStatus(error.status_code).phrase
    message = UNSAID.get(error.status_code, error.detail) if unsaid else error.detail
    return problem(error.status_code, message, error.headers)


ANSWERS: dict[type[Exception], Callable[[Exception], Response]] = {
    RequestValidationError: _invalid,
    HTTPException: _http,
    UnknownItem: lambda error: problem(404, str(error)),
    ConfigError: lambda error: problem(422, str(error)),
    Overloaded: lambda _: problem(503, OVERLOADED, {"Retry-After": str(RETRY_SECONDS)}),
    TimeoutError: lambda _: problem(504, TOO_LATE),
}
