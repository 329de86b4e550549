"""The command that shows and empties the cache of object stores."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from typer import Option


def cache(
    clear: Annotated[
        bool, Option("--clear", help="Remove everything that no process uses.")
    ] = False,
) -> None:
    """Show the local copies of what was fetched from object stores, or remove them.

    Example: crossbatch cache --clear
    """
    from crossbatch.cache import cache_folder, cache_limit, entries, remove_unused

    limit = cache_limit()
    found = entries()
    if clear:
        removed = [entry for entry in found if remove_unused(entry.path)]
        kept = len(found) - len(removed)
        freed = sum(entry.num_bytes for entry in removed)
        typer.echo(f"{freed:,} bytes freed; {kept} in use were kept")
        return
    for entry in found:
        names = sorted(path.name for path in entry.path.iterdir())
        opened = datetime.fromtimestamp(entry.opened).strftime("%Y-%m-%d %H:%M")
        in_use = ", in use" if entry.in_use else ""
        typer.echo(f"{entry.num_bytes:>15,}  {opened}  {', '.join(names)}{in_use}")
    total = sum(entry.num_bytes for entry in found)
    bound = "no bound" if limit is None else f"at most {limit:,}"
    typer.echo(f"{total:>15,}  bytes in {cache_folder()}, {bound}")
