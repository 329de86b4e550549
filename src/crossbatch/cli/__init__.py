"""The `crossbatch` command.

Each module holds the commands of one part. They import torch and other large packages inside their
functions, so that `crossbatch --help` is fast.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib import metadata
from typing import Annotated, NoReturn, TextIO, cast

import typer
from typer import Option

from crossbatch.cli import bundles, cache, data, doctor, recommend, reports, start, train
from crossbatch.cli.terminal import FAILED, MISTAKE
from crossbatch.errors import ConfigError, DataError, OtherRankError, RankLostError, out_of_memory
from crossbatch.printing import PrintableStream

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Two-tower recommenders with cross-batch negatives: from a log file to recommendations.",
)

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": start.demo,
    "init": start.init,
    "prepare": data.prepare,
    "synth": data.synth,
    "train": train.train,
    "evaluate": train.evaluate,
    "tune": train.tune,
    "export": bundles.export,
    "vectors": bundles.vectors,
    "recommend": recommend.recommend,
    "serve": bundles.serve,
    "reproduce": reports.reproduce,
    "report": reports.report,
    "cache": cache.cache,
    "doctor": doctor.doctor,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(data.app, name="data")
app.add_typer(bundles.items_app, name="items")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"crossbatch {metadata.version('crossbatch')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Define the options of the command itself."""


def main() -> None:
    """Run the command line; a user's mistake prints one sentence and ends with exit code 2."""
    out, errors = (cast("TextIO", PrintableStream(each)) for each in (sys.stdout, sys.stderr))
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            _run()
    except SystemExit as end:
        if "RANK" in os.environ and "torch" in sys.modules:  # started by torchrun
            _leave(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _leave(code: int) -> NoReturn:
    """End at once: threads of a process group may abort an orderly exit (code −6)."""
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
    except OSError as error:  # a full disk, a folder without permission
        where = f": {error.filename}" if error.filename else ""
        reason = error.strerror or f"{error} (is the disk full?)"  # NumPy hides the reason
        sys.stderr.write(f"crossbatch: {reason}{where}\n")
        sys.exit(MISTAKE)
    except (ImportError, MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        sys.stderr.write(
            "crossbatch: there is not enough memory; files on disk are intact: free some, or "
            "lower train.batch_size, model.dim or sampler.capacity\n"
        )
        sys.exit(MISTAKE)
