"""The paths of the server; `/openapi.json` describes them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from crossbatch.serving.server import problems
from crossbatch.serving.server.answers import Recommend, Similar
from crossbatch.serving.server.json_route import JsonRoute
from crossbatch.serving.server.limits import (
    MAX_K,
    MAX_OFFSET,
    MAX_PAGE_ITEMS,
    MAX_SEARCH_LENGTH,
)
from crossbatch.serving.server.messages import (
    ErrorResponse,
    HealthResponse,
    ItemsResponse,
    Key,
    RecommendRequest,
    RecommendResponse,
    SimilarResponse,
    Slot,
)
from crossbatch.serving.server.page_files import PAGE_FILES, page_file
from crossbatch.serving.server.service import Service

API_PATHS = frozenset({"/recommend", "/similar", "/items", "/health", "/metrics", "/openapi.json"})
OPEN_PATHS = frozenset({"/health", *PAGE_FILES})
JSON = "application/json"


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    reasons = {
        400: "The body is not JSON.",
        401: "The token is missing or wrong.",
        404: "No such item.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        415: "The body is not said to be JSON.",
        422: "A value cannot be honoured.",
        503: "Too many requests wait; come back after Retry-After seconds.",
        504: "The answer took too long.",
    }
    return {status: {"model": ErrorResponse, "description": reasons[status]} for status in statuses}


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
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    _add_answers(app, service)
    _add_items(app, service)
    _add_watching(app, service)
    for path in PAGE_FILES:
        app.add_api_route(path, page_file, methods=["GET"], include_in_schema=False)
    return app


def _add_answers(app: FastAPI, service: Service) -> None:
    async def recommend(request: RecommendRequest) -> Response:
        """The best items for a history; items that are unknown are reported and left out."""
        query = Recommend(
            slot=request.bundle,
            history=tuple(request.history),
            k=request.k,
            exclude_seen=request.exclude_seen,
            user_features=request.user_features,
            explain=request.explain,
        )
        return Response((await service.ask(query)).body, media_type=JSON)

    app.router.add_api_route(
        "/recommend",
        recommend,
        methods=["POST"],
        response_model=RecommendResponse,
        responses=_errors(400, 401, 408, 413, 415, 422, 503, 504),
        route_class_override=JsonRoute,
    )

    @app.get(
        "/similar",
        response_model=SimilarResponse,
        responses=_errors(401, 404, 422, 503, 504),
    )
    async def similar(
        id: Annotated[Key, Query(description="An item's id in the source.")],  # noqa: A002
        k: Annotated[int, Query(ge=1, le=MAX_K, description="How many items.")] = 20,
        bundle: Slot = "main",
    ) -> Response:
        """The items nearest to an item."""
        return Response((await service.ask(Similar(bundle, id, k))).body, media_type=JSON)


def _add_items(app: FastAPI, service: Service) -> None:
    @app.get("/items", response_model=ItemsResponse, responses=_errors(401, 422, 503, 504))
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
        facts = live.serving.facts
        if id is not None:
            found, unknown = await service.look_up(lambda: facts.by_keys(id))
            more = False
        else:
            unknown = []
            found, more = await service.look_up(
                lambda: facts.page(search, limit=limit, offset=offset)
            )
            service.prepare(live)
        rest = json.dumps({"more": more, "unknown": unknown})[1:]
        return Response(f'{{"items":[{",".join(found)}],{rest}', media_type=JSON)


def _add_watching(app: FastAPI, service: Service) -> None:
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
        body = generate_latest(service.metrics.registry)
        return Response(body, media_type=CONTENT_TYPE_LATEST)
