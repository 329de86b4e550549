"""What the server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """All measures of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "crossbatch_requests", "Requests answered.", ("path", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "crossbatch_request_seconds",
            "Time from a request's head to its last byte.",
            ("path",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batch_size = Histogram(
            "crossbatch_batch_size",
            "Requests answered by one search.",
            buckets=SIZES,
            registry=self.registry,
        )
        self.waiting = Gauge(
            "crossbatch_queue_length", "Requests waiting for a search.", registry=self.registry
        )
        self.overloaded = Counter(
            "crossbatch_overloaded", "Requests refused by a full queue.", registry=self.registry
        )
        self.unknown_items = Counter(
            "crossbatch_unknown_items",
            "Items of histories that the bundle does not hold.",
            registry=self.registry,
        )
        self.reloads = Counter(
            "crossbatch_reloads",
            "New bundles taken up or refused.",
            ("slot", "outcome"),
            registry=self.registry,
        )
        self.bundle = Gauge(
            "crossbatch_bundle_info",
            "1 for the bundle that serves now.",
            ("slot", "name", "version"),
            registry=self.registry,
        )
        self.items = Gauge(
            "crossbatch_bundle_items", "Items of the bundle.", ("slot",), registry=self.registry
        )
