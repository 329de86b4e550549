"""Requests, responses and errors of the HTTP API; the OpenAPI document is made from them.

Every error response is `{"error": {"status": 422, "message": "k: …"}}`. Messages speak of the
request alone; what went wrong inside the server goes to the log.
"""

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.exceptions import HTTPException

from crossbatch.errors import ConfigError

MAX_K = 1_000
MAX_HISTORY = 1_000
MAX_KEY_LENGTH = 256
MAX_SEARCH_LENGTH = 200
MAX_PAGE_ITEMS = 100
MAX_OFFSET = 10_000
MAX_USER_FEATURES = 100
MAX_CANDIDATES = 10_000
MAX_FILTER_COLUMNS = 100

INTERNAL = "something went wrong inside the server; its log tells more"
DEFAULT_MESSAGES = {404: "there is nothing here", 405: "this path does not take that method"}


def _whole(value: object) -> object:
    """JSON knows no integers: 20.0 is 20."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY_LENGTH)]
Whole = Annotated[int, BeforeValidator(_whole)]
Slot = Literal["main", "compare"]
FeatureValue = str | float | int | bool | list[str] | list[float] | None


class RecommendRequest(BaseModel):
    """A user, as far as the server needs to know them."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"history": ["2571", "260"], "k": 10}]},
    )

    history: list[Key] = Field(
        max_length=MAX_HISTORY, description="Item ids as in the source, oldest first."
    )
    k: Whole = Field(20, ge=1, le=MAX_K, description="How many items.")
    exclude_seen: bool = Field(True, description="Leave out items of the history.")
    user_features: dict[str, FeatureValue] | None = Field(
        None, max_length=MAX_USER_FEATURES, description="Values by name, if the model reads any."
    )
    context: dict[str, FeatureValue] | None = Field(
        None, max_length=MAX_USER_FEATURES, description="Of the request, if the model reads any."
    )
    filter: dict[str, Any] | None = Field(
        None,
        max_length=MAX_FILTER_COLUMNS,
        description="A condition for each filter column: a value, a list of values, or an object "
        "of <, <=, >, >= and not.",
        examples=[{"in_stock": True, "category": ["a", "b"], "price": {"<": 20}}],
    )
    candidates: list[Key] | None = Field(
        None, max_length=MAX_CANDIDATES, description="Ids of the only items to choose from."
    )
    exclude: list[Key] = Field(
        [], max_length=MAX_HISTORY, description="Ids of further items to leave out."
    )
    explain: bool = Field(
        False, description="Also say why: the nearest item of the history, a list per interest."
    )
    key: Key | None = Field(
        None,
        description="Who asks, such as a user id: with --share the same key is always answered by "
        "the same bundle. It is not logged.",
    )
    bundle: Slot | None = Field(
        None,
        description='"main", or "compare" for the bundle given by --compare; by default "main", or '
        "as --share decides.",
    )


class BundleName(BaseModel):
    """Which bundle answered."""

    name: str
    version: str = Field(description="A short hash of all that the bundle holds.")


class Item(BaseModel):
    """An item of the catalogue."""

    id: str = Field(description="As in the source.")
    title: str = Field(description="The id where there is no title.")
    count: int = Field(description="Interactions in training.")
    popularity: Literal["head", "mid", "tail", "cold"] = Field(
        description="Thirds of the training interactions; cold: none at all."
    )


class Neighbour(Item):
    """An item with its score."""

    score: float


class Reason(BaseModel):
    """The item of the history that is nearest to a recommended one."""

    id: str
    similarity: float = Field(description="Cosine of the two item vectors.")


class Recommended(Neighbour):
    """An item of a user's list."""

    interest: int = Field(description="Which of the user's vectors it answers to, from 0.")
    because: Reason | None = Field(None, description="Only with explain.")


class Interest(BaseModel):
    """One of the user's vectors by itself."""

    interest: int
    near: list[str] = Field(description="Ids of the history that it is closest to.")
    items: list[Neighbour]


class RecommendResponse(BaseModel):
    """A user's list, best first."""

    bundle: BundleName
    items: list[Recommended]
    interests: list[Interest] | None = Field(None, description="Only with explain.")
    popular: bool = Field(
        description="Nothing was known of the user: these are the most popular items."
    )
    unknown: list[str] = Field(description="Ids of the history that the bundle does not hold.")


class SimilarResponse(BaseModel):
    """An item's neighbours by cosine, nearest first."""

    bundle: BundleName
    item: Item
    items: list[Neighbour]


class ItemsResponse(BaseModel):
    """A page of items."""

    bundle: BundleName
    items: list[Item]
    more: bool = Field(description="Whether there is a further page.")
    unknown: list[str] = Field(description="Ids asked for that the bundle does not hold.")


class FeatureFacts(BaseModel):
    """A feature of users or requests that the model reads."""

    kind: str
    values: list[str] = Field(description="The commonest ones, where they can be listed.")


class BundleFacts(BundleName):
    """What serves in one slot."""

    items: int
    dim: int
    interests: int
    history_length: int
    user_features: dict[str, FeatureFacts]
    filters: dict[str, str] = Field(description="Kinds of the filter columns, by name.")
    context: dict[str, FeatureFacts]
    model: str
    metrics: dict[str, Any]
    serving_since: str
    problem: str | None


class HealthResponse(BaseModel):
    """Whether the server answers, and with what."""

    status: Literal["ok", "stale"] = Field(description="stale: a newer bundle was refused.")
    bundles: dict[str, BundleFacts] | None = Field(
        description="By slot; null for a caller without the token."
    )


class Error(BaseModel):
    """What went wrong."""

    status: int
    message: str


class ErrorResponse(BaseModel):
    """The body of every answer that is not a good one."""

    error: Error


class UnknownItem(Exception):  # noqa: N818 - named for the answer that it leads to
    """The request names an item that the bundle does not hold."""


class Overloaded(Exception):  # noqa: N818
    """Too many requests wait already."""


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as JSON."""
    body = json.dumps({"error": {"status": status, "message": message}}, ensure_ascii=False)
    return Response(
        body.encode("utf-8", "replace"), status, dict(headers or {}), media_type="application/json"
    )


def exception_response(error: Exception) -> Response:
    """The response to a request that raised `error`."""
    for kind, respond in EXCEPTION_RESPONSES.items():
        if isinstance(error, kind):
            return respond(error)
    return error_response(500, INTERNAL)


def install_error_handlers(app: FastAPI) -> None:
    """Let `app` answer every exception with `exception_response`."""

    def handle(request: Request, error: Exception) -> Response:
        return exception_response(error)

    for kind in (*EXCEPTION_RESPONSES, Exception):
        app.add_exception_handler(kind, handle)


def _invalid(error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return error_response(400, f"the body is not valid JSON: {first['ctx']['error']}")
    # ("body", "history", 3) -> history.3; the value itself is not repeated
    where = ".".join(str(part) for part in first["loc"][1:])
    return error_response(422, f"{where}: {first['msg']}" if where else str(first["msg"]))


def _http(error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if message == HTTPStatus(error.status_code).phrase:
        message = DEFAULT_MESSAGES.get(error.status_code, message)
    headers = dict(error.headers or {})
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"
    return error_response(error.status_code, message, headers)


EXCEPTION_RESPONSES: dict[type[Exception], Callable[[Exception], Response]] = {
    RequestValidationError: _invalid,
    HTTPException: _http,
    UnknownItem: lambda error: error_response(404, str(error)),
    ConfigError: lambda error: error_response(422, str(error)),
    Overloaded: lambda _: error_response(
        503, "the server is busy; try again in a second", {"Retry-After": "1"}
    ),
    TimeoutError: lambda _: error_response(
        504, "the answer took too long; try again, or ask for less"
    ),
}
