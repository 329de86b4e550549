"""`crossbatch export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossbatch.cli.terminal import BundleOut, MovedData, Overwrite, Quiet, progress_bars

if TYPE_CHECKING:
    from crossbatch.serving import Bundle


def register(app: typer.Typer) -> None:
    """Add the commands of this part."""
    app.command("export")(export)


def export(
    run: Annotated[Path, typer.Argument(help="Run folder of a training.")],
    out: BundleOut,
    name: Annotated[
        str | None, typer.Option(help="What to call the bundle; the run's name unless given.")
    ] = None,
    index: Annotated[
        str, typer.Option(help="auto, exact or ivf; auto measures which is right.")
    ] = "auto",
    recall: Annotated[
        float, typer.Option(help="Share of the exact list that an approximate index must find.")
    ] = 0.99,
    graph: Annotated[
        bool, typer.Option(help="Also write the user tower as a torch.export graph.")
    ] = True,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write it as ONNX (extra onnx).")
    ] = False,
    data: MovedData = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Make a bundle of a run: one folder with all that recommending needs, checked against it.

    Example: crossbatch export runs/first --out first.bundle
    """
    from crossbatch.serving import export_bundle
    from crossbatch.training.distributed.start import first_here

    quiet = quiet or not first_here()
    formats = [name for name, wanted in (("pt2", graph), ("onnx", onnx)) if wanted]
    with progress_bars(quiet=quiet) as progress:
        bundle = export_bundle(
            run,
            out,
            name=name,
            data=data,
            index=index,
            recall=recall,
            graph_formats=formats,
            overwrite=overwrite,
            progress=progress,
        )
    if not quiet:
        summary(bundle)


def summary(bundle: Bundle) -> None:
    """Say what a bundle is, in three lines."""
    index, parity = bundle.manifest["index"], bundle.manifest["parity"]
    size = sum(entry["bytes"] for entry in bundle.manifest["files"].values())
    typer.echo(
        f"{bundle.path}: {bundle.config.name}, {bundle.num_items:,} items, "
        f"version {bundle.version}, {size / 1e6:,.1f} MB"
    )
    worst = max(value for part, value in parity.items() if part not in ("users", "tolerance"))
    typer.echo(
        f"answers as before on {parity['users']} users: largest difference {worst:.1e}, relative"
    )
    against = (
        ""
        if index["name"] == "exact"
        else (
            f" (exact search {index['exact_milliseconds']:.2f} ms), recall@{index['k']} "
            f"{index['recall']:.4f}"
        )
    )
    typer.echo(f"index {index['name']}: {index['milliseconds']:.2f} ms a user{against}")
