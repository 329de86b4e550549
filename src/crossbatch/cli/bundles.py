"""Commands that create, change and serve bundles, and export item vectors."""

from __future__ import annotations

import gc
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from crossbatch.cli.terminal import (
    AllowCode,
    BundleOut,
    MovedData,
    Overwrite,
    Quiet,
    comma_separated,
    progress_bars,
)
from crossbatch.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    import polars as pl

    from crossbatch.serving import Bundle

Source = Annotated[Path, Argument(metavar="BUNDLE", help="Bundle folder.")]
Key = Annotated[str, Option(help="Column of item ids.")]
FilterColumn = Annotated[
    list[str] | None,
    Option(
        metavar="NAME[:KIND]",
        help="A column that requests may filter by; may be repeated. "
        "KIND: boolean, integer, number, time, text or list.",
    ),
]

items_app = typer.Typer(no_args_is_help=True, help="Change the items of a bundle without training.")
TOKEN_VARIABLE = "CROSSBATCH_TOKEN"  # noqa: S105 - the variable's name, not a token


def export(
    run: Annotated[Path, Argument(help="Run folder of a training.")],
    out: BundleOut,
    name: Annotated[str | None, Option(help="Name of the bundle; default: the run's.")] = None,
    index: Annotated[
        str, Option(help="auto, exact or ivf; auto measures which is faster.")
    ] = "auto",
    recall: Annotated[
        float, Option(help="Share of the exact list that an approximate index must find.")
    ] = 0.99,
    graph: Annotated[
        bool, Option(help="Also write the user tower as a torch.export graph.")
    ] = True,
    onnx: Annotated[bool, Option("--onnx", help="Also write it as ONNX (extra onnx).")] = False,
    filter_column: FilterColumn = None,
    items: Annotated[Path | None, Option(help="File of items with the filter columns.")] = None,
    key: Key = "item",
    data: MovedData = None,
    allow_code: AllowCode = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Export a run as a bundle: one folder that recommends without the run, checked against it.

    Example: crossbatch export runs/first --out first.bundle
    """
    from crossbatch.serving import export_bundle
    from crossbatch.training.distributed.start import first_here

    quiet = quiet or not first_here()
    formats = [name for name, wanted in (("pt2", graph), ("onnx", onnx)) if wanted]
    if items is not None and not filter_column:
        raise ConfigError("--items needs --filter-column NAME: which of its columns to keep")
    table = None if items is None else _table(items, "--items")
    with progress_bars(quiet=quiet) as progress:
        bundle = export_bundle(
            run,
            out,
            name=name,
            data=data,
            index=index,
            recall=recall,
            graph_formats=formats,
            filter_columns=filter_column or (),
            items=table,
            key=key,
            overwrite=overwrite,
            progress=progress,
        )
    if not quiet:
        _summary(bundle)


def _table(path: Path, option: str) -> pl.DataFrame:
    from crossbatch.serving.tables import scanned_table

    with scanned_table(path, option) as lazy:
        return lazy.collect()


@items_app.command("add")
def add(
    bundle: Source,
    items: Annotated[Path, Argument(help="New items: Parquet, CSV or JSON lines.")],
    out: BundleOut,
    key: Key = "item",
    title: Annotated[str, Option(help="Column of titles.")] = "title",
    allow_code: AllowCode = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Add items to a bundle, encoded from their content alone.

    Example: crossbatch items add first.bundle new_items.parquet --out second.bundle
    """
    from crossbatch.serving import open_bundle
    from crossbatch.serving.bundle.change_items import add_items

    table = _table(items, "ITEMS")
    with progress_bars(quiet=quiet) as progress:
        opened = open_bundle(bundle)
        changed = add_items(
            opened, table, out, key=key, title=title, overwrite=overwrite, progress=progress
        )
    if not quiet:
        typer.echo(f"{len(table):,} items added")
        _summary(changed)


@items_app.command("remove")
def remove(
    bundle: Source,
    out: BundleOut,
    items: Annotated[str | None, Option(help="Item ids, comma-separated.")] = None,
    file: Annotated[Path | None, Option(help="File of item ids, in column --key.")] = None,
    key: Annotated[str, Option(help="Column of item ids in --file.")] = "item",
    allow_code: AllowCode = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Remove items from a bundle: not recommended, and unknown in histories.

    Example: crossbatch items remove first.bundle --items i17,i4 --out second.bundle
    """
    from crossbatch.serving import open_bundle
    from crossbatch.serving.bundle.change_items import remove_items

    if (items is None) == (file is None):
        raise ConfigError("pass either --items ITEM,ITEM or --file FILE")
    if items is not None:
        keys = comma_separated(items)
    else:
        assert file is not None
        table = _table(file, "--file")
        if key not in table.columns:
            raise ConfigError(f"{file} has no column {key!r}: name it with --key")
        keys = [str(name) for name in table[key].to_list()]
    with progress_bars(quiet=quiet) as progress:
        opened = open_bundle(bundle)
        changed = remove_items(opened, keys, out, overwrite=overwrite, progress=progress)
    if not quiet:
        typer.echo(f"{opened.num_items - changed.num_items:,} items removed")
        _summary(changed)


@items_app.command("set")
def set_(
    bundle: Source,
    changes: Annotated[Path, Argument(help="Items: Parquet, CSV or JSON lines.")],
    out: Annotated[
        Path | None,
        Option("--out", "-o", help="Bundle folder to create; BUNDLE itself is the default."),
    ] = None,
    key: Key = "item",
    filter_column: FilterColumn = None,
    allow_code: AllowCode = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Set the filter columns of some items; all else stays as it is.

    BUNDLE is replaced by one of a new version, which `serve --watch` takes over, unless --out names
    another folder.

    Example: crossbatch items set first.bundle stock.parquet
    """
    from crossbatch.serving import open_bundle
    from crossbatch.serving.bundle.filter_columns import set_columns

    table = _table(changes, "CHANGES")
    with progress_bars(quiet=quiet) as progress:
        opened = open_bundle(bundle)
        changed = set_columns(
            opened,
            table,
            out or bundle,
            key=key,
            declare=filter_column or (),
            overwrite=overwrite or out is None,
            progress=progress,
        )
    if not quiet:
        last = changed.manifest["origin"]["changes"][-1]
        left_out = len(table) - last["items"]
        rest = f"; {left_out:,} are not in the bundle: left out" if left_out else ""
        typer.echo(f"{', '.join(last['set'])} set for {last['items']:,} items{rest}")
        typer.echo(f"{changed.path}: version {changed.version}")


def vectors(
    source: Annotated[Path, Argument(help="Bundle, or run folder of a training.")],
    out: Annotated[Path | None, Option("--out", "-o", help="File: .parquet or .jsonl.")] = None,
    postgres: Annotated[
        str | None,
        Option(help="PostgreSQL address instead; keep the password in PGPASSWORD."),
    ] = None,
    table: Annotated[str, Option(help="With --postgres: table name.")] = "crossbatch_items",
    allow_code: AllowCode = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write item vectors to a file, or into PostgreSQL with pgvector.

    Example: crossbatch vectors first.bundle --out vectors.parquet
    """
    from crossbatch.serving.from_run import open_recommender
    from crossbatch.serving.pgvector import connect, load_items
    from crossbatch.serving.tables import write_vectors

    if (out is None) == (postgres is None):
        raise ConfigError("pass either --out FILE or --postgres ADDRESS")
    with progress_bars(quiet=quiet) as progress:
        recommender = open_recommender(source)
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


def _summary(bundle: Bundle) -> None:
    """Print what a bundle holds."""
    index, parity = bundle.manifest["index"], bundle.manifest["parity"]
    size = sum(entry["bytes"] for entry in bundle.manifest["files"].values())
    typer.echo(
        f"{bundle.path}: {bundle.config.name}, {bundle.num_items:,} items, "
        f"version {bundle.version}, {size / 1e6:,.1f} MB"
    )
    worst = max(value for part, value in parity.items() if part not in ("users", "tolerance"))
    typer.echo(
        f"same answers as the run for {parity['users']} users: largest relative difference "
        f"{worst:.1e}"
    )
    against = ""
    if index["name"] != "exact":
        against = f" (exact search {index['exact_milliseconds']:.2f} ms), "
        against += f"recall@{index['k']} {index['recall']:.4f}"
    typer.echo(f"index {index['name']}: {index['milliseconds']:.2f} ms a user{against}")


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
