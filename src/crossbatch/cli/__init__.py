"""The `crossbatch` command: the only place where names become objects.

Each module of this package adds the commands of one part; heavy imports wait inside the
functions, so that `crossbatch --help` answers at once.
"""

from __future__ import annotations

import atexit
import os
import sys
from importlib import metadata
from typing import Annotated, NoReturn

import typer

from crossbatch.cli import (
    data,
    doctor,
    export,
    items,
    recommend,
    report,
    reproduce,
    serve,
    train,
    tune,
)
from crossbatch.cli.terminal import FAILED, MISTAKE
from crossbatch.errors import (
    ConfigError,
    DataError,
    OtherRankError,
    RankLostError,
    out_of_memory,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Two-tower recommenders with cross-batch negatives: from a log file to recommendations.",
)

for part in (data, train, tune, export, items, recommend, serve, reproduce, report, doctor):
    part.register(app)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"crossbatch {metadata.version('crossbatch')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say it and stop."),
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        _run()
    except SystemExit as end:
        if "RANK" in os.environ and "torch" in sys.modules:  # one of those that torchrun started
            _leave(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _leave(code: int) -> NoReturn:
    """End at once: a process group's threads may abort a process that ends in order (code −6)."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run() -> None:
    try:
        app()
    except OtherRankError:
        sys.exit(MISTAKE)
    except (ConfigError, DataError) as error:
        sys.stderr.write(f"crossbatch: {error}\n")
        sys.exit(MISTAKE)
    except RankLostError as error:
        sys.stderr.write(f"crossbatch: {error}\n" if str(error) else "")
        sys.exit(FAILED)
    except OSError as error:  # a full disk, a folder without permission: what was whole stays whole
        where = f": {error.filename}" if error.filename else ""
        reason = error.strerror or f"{error} (is the disk full?)"  # NumPy does not say
        sys.stderr.write(f"crossbatch: {reason}{where}\n")
        sys.exit(MISTAKE)
    except (ImportError, MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        sys.stderr.write(
            "crossbatch: there is not enough memory; what was whole stays whole: free some, or "
            "lower train.batch_size, model.dim or sampler.capacity\n"
        )
        sys.exit(MISTAKE)
