"""The paths of the server and the web page's files; `/openapi.json` describes them."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import TypeAdapter, ValidationError
from starlette.types import Receive, Scope, Send

from crossbatch.serving.server.answers import Similar
from crossbatch.serving.server.messages import (
    EXCEPTION_RESPONSES,
    MAX_K,
    MAX_OFFSET,
    MAX_PAGE_ITEMS,
    MAX_SEARCH_LENGTH,
    ErrorResponse,
    HealthResponse,
    ItemsResponse,
    Key,
    RecommendRequest,
    RecommendResponse,
    SimilarResponse,
    Slot,
    exception_response,
    install_error_handlers,
)
from crossbatch.serving.server.service import Service

JSON = "application/json"
PAGE_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
ERRORS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    404: "No such item.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    422: "A value cannot be honoured.",
    431: "The address and headers are too long.",
    503: "Too many requests wait; come back after Retry-After seconds.",
    504: "The answer took too long.",
}
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def _load_page() -> dict[str, tuple[bytes, str, str]]:
    """Body, media type and ETag of each page file by URL; no request ever becomes a disk path."""
    found = {}
    for file in files("crossbatch.serving").joinpath("page").iterdir():
        kind = PAGE_KINDS.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            found[path] = (body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found


PAGE_FILES = _load_page()
API_PATHS = frozenset({"/recommend", "/similar", "/items", "/health", "/metrics", "/openapi.json"})
OPEN_PATHS = frozenset({"/health", *PAGE_FILES})


async def page_file(request: Request) -> Response:
    """A file of the page; unchanged ones are not sent again."""
    body, kind, tag = PAGE_FILES[request.url.path]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorResponse, "description": ERRORS[status]} for status in statuses}


def build_app(service: Service) -> FastAPI:
    """The application over a service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="crossbatch",
        version=version("crossbatch"),
        description="Recommendations from a crossbatch bundle. A server that was started with a "
        "token wants it in every request, as `Authorization: Bearer …`.",
        lifespan=lifespan,
        docs_url=None,  # the pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    install_error_handlers(app)

    async def recommend(request: RecommendRequest) -> Response:
        """The best items for a history; items that are unknown are reported and left out."""
        return Response((await service.recommend(request)).body, media_type=JSON)

    app.router.add_api_route(
        "/recommend",
        recommend,
        methods=["POST"],
        response_model=RecommendResponse,
        responses=_errors(400, 401, 408, 413, 415, 422, 431, 503, 504),
        route_class_override=JsonRoute,
    )

    @app.get(
        "/similar", response_model=SimilarResponse, responses=_errors(401, 404, 422, 431, 503, 504)
    )
    async def similar(
        id: Annotated[Key, Query(description="An item's id in the source.")],  # noqa: A002
        k: Annotated[int, Query(ge=1, le=MAX_K, description="How many items.")] = 20,
        bundle: Slot = "main",
    ) -> Response:
        """The items nearest to an item."""
        return Response((await service.ask(Similar(bundle, id, k))).body, media_type=JSON)

    @app.get("/items", response_model=ItemsResponse, responses=_errors(401, 422, 431, 503, 504))
    async def items(
        search: Annotated[
            str, Query(max_length=MAX_SEARCH_LENGTH, description="Words of a title, or an id.")
        ] = "",
        id: Annotated[  # noqa: A002
            list[Key] | None,
            Query(max_length=MAX_PAGE_ITEMS, description="These items instead of a search."),
        ] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE_ITEMS)] = 20,
        offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
        bundle: Slot = "main",
    ) -> Response:
        """Items by title, by id, or, without either, the most popular ones."""
        live = service.slot(bundle)
        serving = live.serving
        stored = serving.items
        more, unknown = False, list[str]()
        if id is not None:
            found, unknown = await service.look_up(lambda: stored.by_keys(id))
        else:
            found, more = await service.look_up(
                lambda: stored.page(search, limit=limit, offset=offset)
            )
            service.prepare(live)
        rest = json.dumps({"more": more, "unknown": unknown})[1:]
        body = f'{{"bundle":{serving.name_and_version_json},"items":[{",".join(found)}],{rest}'
        return Response(body, media_type=JSON)

    @app.get("/health", response_model=HealthResponse)
    async def health(request: Request) -> dict[str, Any]:
        """Whether the server answers, and which bundles serve."""
        stale = any(live.refused for live in service.bundles.values())
        bundles = {slot: live.describe() for slot, live in service.bundles.items()}
        return {
            "status": "stale" if stale else "ok",
            "bundles": bundles if request.scope["authorized"] else None,
        }

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **_errors(401)},
    )
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    for path in PAGE_FILES:
        app.add_api_route(path, page_file, methods=["GET"], include_in_schema=False)
    return app


class JsonRoute(APIRoute):
    """A route whose endpoint takes one argument, its JSON body, and returns a `Response`.

    FastAPI parses a body to Python objects, resolves dependencies and wraps every request in
    layers; together that costs more than reading the request and writing the answer. Such a route
    is declared and documented as any other, but pydantic validates the bytes of its body directly,
    and `ShortCut` calls it without the layers.
    """

    def get_route_handler(self) -> Handler:
        """Return the function from a request to its response."""
        (argument,) = self.dependant.body_params
        body_type: Any = argument.field_info.annotation
        validate = TypeAdapter(body_type).validate_json
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            # A page of another site cannot send this type without the browser asking us first.
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise HTTPException(
                    415, "the body must be JSON: send Content-Type: application/json"
                )
            try:
                body = validate(await request.body())
            except ValidationError as error:
                found = error.errors(include_url=False, include_input=False)
                raise RequestValidationError(
                    [entry | {"loc": ("body", *entry["loc"])} for entry in found]
                ) from None
            response: Response = await endpoint(body)
            return response

        return handle


class ShortCut:
    """ASGI layer that calls the `JsonRoute`s of an application directly."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._handlers: dict[tuple[str, str], Handler] = {
            (method, route.path): route.get_route_handler()
            for route in app.routes
            if isinstance(route, JsonRoute)
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to a `JsonRoute`, pass on all others."""
        handler = None
        if scope["type"] == "http":
            handler = self._handlers.get((scope["method"], scope["path"]))
        if handler is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await handler(Request(scope, receive))
        except tuple(EXCEPTION_RESPONSES) as error:
            response = exception_response(error)
        await response(scope, receive, send)
