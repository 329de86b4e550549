"""The `crossbatch` command: the only place where names become objects.

Each module of this package adds the commands of one part; heavy imports wait inside the
functions, so that `crossbatch --help` answers at once.
"""

from __future__ import annotations

import sys

import typer

from crossbatch.cli import data, export, items, recommend, report, reproduce, serve, train
from crossbatch.errors import ConfigError, DataError

USER_MISTAKE = 2  # exit code of every error that the user can mend

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Two-tower recommenders with cross-batch negatives: from a log file to recommendations.",
)

for part in (data, train, export, items, recommend, serve, reproduce, report):
    part.register(app)


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except (ConfigError, DataError) as error:
        sys.stderr.write(f"crossbatch: {error}\n")
        sys.exit(USER_MISTAKE)
    except OSError as error:  # a full disk, a folder without permission: what was whole stays whole
        where = f": {error.filename}" if error.filename else ""
        sys.stderr.write(f"crossbatch: {error.strerror or error}{where}\n")
        sys.exit(USER_MISTAKE)
