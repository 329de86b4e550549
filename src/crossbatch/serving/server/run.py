"""Start the server and run it until SIGTERM or Ctrl-C."""

from __future__ import annotations

import gc
import logging
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from crossbatch.errors import ConfigError
from crossbatch.models import allow_code
from crossbatch.remote import is_url
from crossbatch.serving.server.app import API_PATHS, OPEN_PATHS, ShortCut, build_app
from crossbatch.serving.server.guard import (
    ANSWER_SECONDS,
    MAX_HEAD_BYTES,
    BoundedProtocol,
    Guard,
    connection_limit,
    is_loopback,
)
from crossbatch.serving.server.live_bundle import LiveBundle
from crossbatch.serving.server.logs import close_log, log_event, log_to_stderr
from crossbatch.serving.server.monitoring import Metrics, RequestMonitor
from crossbatch.serving.server.service import Service
from crossbatch.serving.server.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.types import ASGIApp

MIN_TOKEN_LENGTH = 16
KEEP_ALIVE_SECONDS = 75  # longer than a proxy in front usually keeps an idle connection
SHUTDOWN_SECONDS = 15
# The search thread releases the GIL at every tensor operation. With Python's 5 ms it
# would wait for a busy event loop longer than it computes.
SWITCH_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `crossbatch serve`."""

    host: str = "127.0.0.1"  # address to listen on
    port: int = 8000  # 0 for any free one
    token: str | None = None  # what every request must bear; needed for anything but loopback
    watch: bool = False  # load a new bundle at the same path without a signal
    timeout: float = 10.0  # seconds after which an answer comes too late
    max_queue: int = 512  # the most requests that may wait for one
    quiet: bool = False  # log warnings and errors only
    share: float = 0.0  # of requests that the bundle for comparisons answers, by key
    shadow: bool = False  # let it answer all others too, for the records alone
    exposure_log: Path | None = None  # file for what was shown
    log_histories: bool = False  # whether histories go there as well
    workers: int = 1  # processes that answer
    allow_code: tuple[str, ...] = ()  # packages that towers may be imported from

    @property
    def log_level(self) -> int:
        """From which level on events are logged."""
        return logging.WARNING if self.quiet else logging.INFO

    def __post_init__(self) -> None:
        """Refuse to listen on the network without a token."""
        if self.workers < 1:
            raise ConfigError(f"--workers must be at least 1, got {self.workers}")
        if not 0 <= self.share <= 1:
            raise ConfigError(f"--share must be 0 to 1, got {self.share}")
        if self.log_histories and self.exposure_log is None:
            raise ConfigError("--log-histories needs --exposure-log FILE")
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} would let everyone on the network ask: pass --token-file "
                "FILE (or CROSSBATCH_TOKEN), or listen on 127.0.0.1"
            )
        if self.token is not None and len(self.token) < MIN_TOKEN_LENGTH:
            raise ConfigError(
                f"the token must have at least {MIN_TOKEN_LENGTH} characters, got "
                f"{len(self.token)}; make one with `openssl rand -hex 32`"
            )


def serve(path: Path, options: ServeOptions, *, compare: Path | None = None) -> None:
    """Serve a bundle until SIGTERM or Ctrl-C; requests under way are answered first.

    `compare` is a second bundle for comparisons.

    Raises:
        ConfigError: If the options cannot be honoured.
        BundleError: If a bundle cannot be opened.
    """
    if compare is None and (options.share or options.shadow):
        raise ConfigError("--share and --shadow need a second bundle: pass --compare BUNDLE")
    if options.watch and is_url(path):
        raise ConfigError(
            f"--watch needs a folder of this machine, got {path}: leave it out, and send SIGHUP "
            "after an upload"
        )
    with _listen(options) as listening:
        if options.workers == 1:
            serve_socket(listening, path, options, compare)
            return
        one = partial(serve_socket, listening, path, options, compare)
        with log_to_stderr(options.log_level):
            Workers(options.workers, one).run(lambda pids: announce(listening, workers=pids))
            log_event("stopped")


def serve_socket(
    listening: socket.socket,
    path: Path,
    options: ServeOptions,
    compare: Path | None,
    ready: Callable[[], None] | None = None,
) -> None:
    """Serve a bundle in this process; `ready` is called once it answers, by default `announce`."""
    allow_code(*options.allow_code)
    bundles = {"main": LiveBundle("main", path)}
    if compare is not None:
        bundles["compare"] = LiveBundle("compare", compare)
    if ready is None:
        names = {slot: live.serving.name_and_version for slot, live in bundles.items()}
        ready = partial(announce, listening, bundles=names)
    sys.setswitchinterval(SWITCH_SECONDS)
    config = uvicorn.Config(
        protected_app(bundles, options),
        http=BoundedProtocol,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    BoundedProtocol.limit = connection_limit()
    # What is loaded now stays. Searching half a million objects for garbage would stop all
    # requests for a tenth of a second, again and again.
    gc.freeze()
    gc.enable()
    with log_to_stderr(options.log_level):
        _Server(config, ready).run(sockets=[listening])


def announce(listening: socket.socket, **facts: Any) -> None:
    """Log and print the address."""
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    log_event("listening", url=url, **facts)
    with suppress(OSError):  # a closed pipe, a full disk
        print(f"Open {url} in a browser; Ctrl-C stops.", flush=True)


def protected_app(bundles: dict[str, LiveBundle], options: ServeOptions) -> ASGIApp:
    """The application inside its guard and its monitoring."""
    metrics = Metrics()
    app = ShortCut(build_app(Service(bundles, metrics, options)))
    guarded = Guard(app, token=options.token, open_paths=OPEN_PATHS)
    return RequestMonitor(guarded, metrics=metrics, paths=API_PATHS | OPEN_PATHS)


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it listens and logs when it stops."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log_event("stopping")
        await super().shutdown(sockets)
        log_event("stopped")
        close_log()  # uvicorn ends the process by the signal that it has caught


def _listen(options: ServeOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listening = socket.create_server((options.host, options.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {options.host} port {options.port} "
            f"({getattr(error, 'strerror', None) or error}); pass another --port or --host"
        ) from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux drops what a client does not read, even after
        # the whole answer is in the kernel's buffers
        milliseconds = round(1000 * ANSWER_SECONDS)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listening
