"""The server's outermost layer: Prometheus metrics, log lines of requests, headers for browsers."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
    multiprocess,
)

from crossbatch.serving.server.logs import log_request, logger
from crossbatch.serving.server.messages import INTERNAL, error_response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Set where several processes answer: prometheus_client keeps their numbers in files there.
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
BUNDLE_INFO = "crossbatch_bundle_info"  # a gauge: 1 for each bundle that serves

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
STAGE_SECONDS = (0.0001, 0.00025, 0.0005, *SECONDS[:-1])
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
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
CLIENT_LEFT = 499  # status in the log of a request whose client left before the answer
REQUEST: ContextVar[str] = ContextVar(
    "request", default=""
)  # id of the request that a task answers
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Metrics:
    """The Prometheus metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        # of several processes, the largest value of those that live
        gauge = partial(Gauge, registry=self.registry, multiprocess_mode="livemax")
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter("crossbatch_requests", "Requests answered.", ("path", "status"))
        self.seconds = histogram(
            "crossbatch_request_seconds",
            "Time from a request's head to its last byte.",
            ("path",),
            buckets=SECONDS,
        )
        self.batch_size = histogram(
            "crossbatch_batch_size", "Requests answered by one search.", buckets=SIZES
        )
        self.waiting = gauge("crossbatch_queue_length", "Requests waiting for a search.")
        self.overloaded = counter("crossbatch_overloaded", "Requests refused by a full queue.")
        self.unknown_items = counter(
            "crossbatch_unknown_items", "Items of histories that the bundle does not hold."
        )
        self.reloads = counter(
            "crossbatch_reloads", "New bundles taken up or refused.", ("slot", "outcome")
        )
        self.bundle = gauge(
            BUNDLE_INFO,
            "1 for the bundle that serves now.",
            ("slot", "name", "version"),
        )
        self.items = gauge("crossbatch_bundle_items", "Items of the bundle.", ("slot",))
        self.stage_seconds = histogram(
            "crossbatch_stage_seconds",
            "Time of a search in the user tower, in the index, and to prepare a filter.",
            ("stage",),
            buckets=STAGE_SECONDS,
        )
        self.recommendations = counter(
            "crossbatch_recommendations", "Lists made.", ("slot", "shadow")
        )

    def forget_bundle(self, slot: str, name: str, version: str) -> None:
        """Report a bundle no longer."""
        if METRICS_FOLDER in os.environ:  # the files of several processes can only say 0
            self.bundle.labels(slot, name, version).set(0)
        else:
            self.bundle.remove(slot, name, version)

    def text(self) -> bytes:
        """All metrics as Prometheus reads them, summed over the processes of the server."""
        if METRICS_FOLDER not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        _Workers(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


class _Workers(multiprocess.MultiProcessCollector):
    """Reads the files of all processes, and leaves out the bundles that were replaced in all."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for metric in super().collect():  # type: ignore[no-untyped-call]
            if metric.name == BUNDLE_INFO:
                metric.samples = [sample for sample in metric.samples if sample.value]
            yield metric


class RequestMonitor:
    """The outermost ASGI layer: a log line, metrics and protective headers for every request.

    Paths other than `paths` share one label, so that the registry stays small.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and record how it ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8).encode()
        status = CLIENT_LEFT
        REQUEST.set(request_id.decode())

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [*HEADERS, (b"x-request-id", request_id)]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:  # the traceback is for the log alone
            logger.exception("fault")
            if status == CLIENT_LEFT:
                await error_response(500, INTERNAL)(scope, receive, send_with_headers)
        finally:
            seconds, path = time.perf_counter() - started, scope["path"]
            label = path if path in self._paths else "other"
            self._metrics.requests.labels(label, status).inc()
            self._metrics.seconds.labels(label).observe(seconds)
            log_request(request_id.decode(), scope["method"], path, status, seconds)
