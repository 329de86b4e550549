"""`crossbatch serve BUNDLE`: recommendations over HTTP, and a web page."""

from __future__ import annotations

import gc
import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from crossbatch.cli.terminal import AllowCode
from crossbatch.errors import ConfigError, needs_extra

TOKEN_VARIABLE = "CROSSBATCH_TOKEN"  # noqa: S105 - the variable's name, not a token


def serve(
    bundle: Annotated[Path, Argument(help="Bundle folder, or a symbolic link to one.")],
    compare: Annotated[
        Path | None,
        Option(metavar="BUNDLE", help="A second bundle; the page shows both side by side."),
    ] = None,
    host: Annotated[str, Option(help="Address; all but loopback need a token.")] = ("127.0.0.1"),
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help=f"File with the token that requests must send; default: ${TOKEN_VARIABLE}.",
        ),
    ] = None,
    watch: Annotated[
        bool, Option("--watch", help="Reload when the bundle at this path changes.")
    ] = False,
    timeout: Annotated[float, Option(min=0.1, help="Seconds before a request fails.")] = 10.0,
    max_queue: Annotated[
        int, Option(min=1, help="Requests that may wait; more get status 503.")
    ] = 512,
    workers: Annotated[
        int, Option(min=1, help="Processes that answer; each has its own queue.")
    ] = 1,
    share: Annotated[
        float, Option(help="Share of requests that --compare answers, by their key.")
    ] = 0.0,
    shadow: Annotated[
        bool, Option("--shadow", help="Ask --compare too, for log and metrics alone.")
    ] = False,
    exposure_log: Annotated[
        Path | None,
        Option(metavar="FILE", help="Append what was shown, as JSON lines; -: stdout."),
    ] = None,
    log_histories: Annotated[
        bool, Option("--log-histories", help="Write histories to the exposure log too.")
    ] = False,
    allow_code: AllowCode = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Log warnings and errors only.")] = False,
) -> None:
    """Serve recommendations over HTTP, and a page that shows them.

    Open the printed address in a browser. SIGHUP loads a new bundle from the same path without
    losing a request; SIGTERM or Ctrl-C answers open requests and stops.

    Example: crossbatch serve first.bundle --port 8000 --watch
    """
    given = dict(locals())  # the options by name
    gc.disable()  # saves a fifth of the start-up; enabled again before the first request
    # One core answers HTTP, the others search; to be set before the libraries are loaded.
    cores = os.cpu_count() or 2
    threads = cores - 1 if workers == 1 else cores // workers
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
    with needs_extra("serve", "serving"):
        from crossbatch.serving.server.run import ServeOptions
        from crossbatch.serving.server.run import serve as run
    given |= {"token": _token(token_file), "allow_code": tuple(allow_code or ())}
    options = ServeOptions(**{field.name: given[field.name] for field in fields(ServeOptions)})
    run(bundle, options, compare=compare)


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    token = file.read_text(encoding="utf-8").strip()
    if not token:
        raise ConfigError(f"--token-file {file} is empty; write the token into it")
    return token
