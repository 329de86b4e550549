"""`crossbatch items add`, `crossbatch items remove` and `crossbatch vectors`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossbatch.cli.export import summary
from crossbatch.cli.terminal import BundleOut, Overwrite, Quiet, progress_bars
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

Source = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle folder.")]

app = typer.Typer(no_args_is_help=True, help="Change the items of a bundle, without training.")


def register(parent: typer.Typer) -> None:
    """Add the commands of this part."""
    parent.add_typer(app, name="items")
    parent.command("vectors")(vectors)


@app.command("add")
def add(
    bundle: Source,
    items: Annotated[Path, typer.Argument(help="New items: Parquet, CSV or JSON lines.")],
    out: BundleOut,
    key: Annotated[str, typer.Option(help="Column of item ids.")] = "item",
    title: Annotated[str, typer.Option(help="Column of titles.")] = "title",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Make a bundle that also has new items, encoded from their content alone.

    Example: crossbatch items add first.bundle new_items.parquet --out second.bundle
    """
    from crossbatch.serving import open_bundle
    from crossbatch.serving.bundle.change_items import add_items

    table = _table(items)
    opened = open_bundle(bundle)
    with progress_bars(quiet=quiet) as progress:
        changed = add_items(
            opened, table, out, key=key, title=title, overwrite=overwrite, progress=progress
        )
    if not quiet:
        typer.echo(f"{len(table):,} items added")
        summary(changed)


@app.command("remove")
def remove(
    bundle: Source,
    out: BundleOut,
    items: Annotated[str | None, typer.Option(help="Item ids, comma-separated.")] = None,
    file: Annotated[Path | None, typer.Option(help="Or a file with them, by --key.")] = None,
    key: Annotated[str, typer.Option(help="Column of item ids in --file.")] = "item",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Make a bundle without some items: never recommended, and unknown in histories.

    Example: crossbatch items remove first.bundle --items i17,i4 --out second.bundle
    """
    from crossbatch.serving import open_bundle
    from crossbatch.serving.bundle.change_items import remove_items

    if (items is None) == (file is None):
        raise ConfigError("pass either --items ITEM,ITEM or --file FILE")
    if items is not None:
        keys = [name.strip() for name in items.split(",") if name.strip()]
    else:
        assert file is not None
        table = _table(file)
        if key not in table.columns:
            raise ConfigError(f"{file} has no column {key!r}: name it with --key")
        keys = [str(name) for name in table[key].to_list()]
    opened = open_bundle(bundle)
    with progress_bars(quiet=quiet) as progress:
        changed = remove_items(opened, keys, out, overwrite=overwrite, progress=progress)
    if not quiet:
        typer.echo(f"{opened.num_items - changed.num_items:,} items removed")
        summary(changed)


def vectors(
    source: Annotated[Path, typer.Argument(help="Bundle, or run folder of a training.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File: .parquet or .jsonl.")
    ] = None,
    postgres: Annotated[
        str | None,
        typer.Option(help="Or a PostgreSQL address; keep the password in PGPASSWORD."),
    ] = None,
    table: Annotated[str, typer.Option(help="With --postgres: the table.")] = "crossbatch_items",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write item vectors to a file, or into PostgreSQL with pgvector.

    Example: crossbatch vectors first.bundle --out vectors.parquet
    """
    from crossbatch.serving.from_run import open_recommender
    from crossbatch.serving.pgvector import connect, load_items
    from crossbatch.serving.vectors import write_vectors

    if (out is None) == (postgres is None):
        raise ConfigError("pass either --out FILE or --postgres ADDRESS")
    recommender = open_recommender(source)
    with progress_bars(quiet=quiet) as progress:
        if out is not None:
            written = write_vectors(recommender, out, overwrite=overwrite, progress=progress)
        else:
            assert postgres is not None
            with connect(postgres) as connection:
                written = load_items(
                    recommender, connection, table, overwrite=overwrite, progress=progress
                )
    if not quiet:
        typer.echo(f"{written:,} vectors of {recommender.dim} numbers written to {out or table}")


def _table(path: Path) -> pl.DataFrame:
    """Read a whole table; the columns of a CSV stay strings."""
    import polars as pl

    readers = {
        ".parquet": pl.read_parquet,
        ".csv": lambda file: pl.read_csv(file, infer_schema=False),
        ".jsonl": pl.read_ndjson,
    }
    if path.suffix not in readers:
        raise ConfigError(f"{path} must end in {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
