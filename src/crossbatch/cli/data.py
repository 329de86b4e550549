"""`crossbatch prepare`, `crossbatch synth` and `crossbatch data describe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option("--out", help="The dataset folder to create.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing dataset.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this part."""
    app.command("synth")(synth)


def synth(
    out: Out,
    users: Annotated[int, typer.Option(min=10)] = 6_000,
    items: Annotated[int, typer.Option(min=20)] = 3_000,
    interactions: Annotated[int, typer.Option(min=100)] = 120_000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    cold: Annotated[float, typer.Option(help="Share of items withheld from training.")] = 0.05,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Generate a synthetic dataset with known structure."""
    from crossbatch.data.options import PrepareOptions
    from crossbatch.data.prepare import prepare
    from crossbatch.data.synthetic import SynthOptions, synthetic_source

    options = SynthOptions(users, items, interactions, seed)
    manifest = prepare(
        synthetic_source(options), out, PrepareOptions(cold_items=cold), overwrite=overwrite
    )
    if not quiet:
        typer.echo(str(manifest["counts"]))
