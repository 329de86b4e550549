"""Routes for the many small requests: JSON in, JSON out, and nothing between.

FastAPI parses a body to Python objects, resolves dependencies and wraps every request in layers
that none of ours needs; together that costs more than reading the request and writing the answer.
Such a route is declared and documented as any other, but its body goes to pydantic as it came, and
`ShortCut` hands it the requests of its path directly.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.types import Receive, Scope, Send

from crossbatch.serving.server import problems

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class JsonRoute(APIRoute):
    """The endpoint takes one argument, its JSON body, and returns a `Response`."""

    def get_route_handler(self) -> Handler:
        """What turns a request into a response."""
        (argument,) = self.dependant.body_params
        body_type: Any = argument.field_info.annotation
        validate = TypeAdapter(body_type).validate_json
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            # Asked for by name, so that no other site's page can post it unasked.
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
    """ASGI layer in front of an application with `JsonRoute`s.

    Args:
        app: The application; all other requests go to it.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._handlers: dict[tuple[str, str], Handler] = {
            (method, route.path): route.get_route_handler()
            for route in app.routes
            if isinstance(route, JsonRoute)
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a short-cut path, pass on all others."""
        handler = None
        if scope["type"] == "http":
            handler = self._handlers.get((scope["method"], scope["path"]))
        if handler is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await handler(Request(scope, receive))
        except tuple(problems.ANSWERS) as error:
            response = problems.answer(error)
        await response(scope, receive, send)
