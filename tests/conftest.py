"""Settings of all tests, and what several packages' tests need."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator


# pytest-xdist runs one worker per core: more threads would wait for each other.
torch.set_num_threads(1)

# No test may depend on the speed of the machine, nor on chance: every run tries the same examples.
# `make faults`, which sets CROSSBATCH_FAULTS, searches among new ones.
settings.register_profile(
    "repeatable",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CROSSBATCH_FAULTS" not in os.environ,
)
settings.load_profile("repeatable")


@pytest.fixture
def memory() -> Iterator[Any]:
    """The object store in memory of fsspec."""
    import fsspec

    store = fsspec.filesystem("memory")
    yield store
    store.rm("/", recursive=True)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket of an S3 server on this machine, spoken to over HTTP."""
    import fsspec

    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    store_class = fsspec.get_filesystem_class("s3")
    store_class.clear_instance_cache()  # an earlier one has another address
    store = fsspec.filesystem("s3")
    store.mkdir("shop")
    yield store
    store.rm("shop", recursive=True)  # the next server of this process would have it
    store_class.clear_instance_cache()
    server.stop()
