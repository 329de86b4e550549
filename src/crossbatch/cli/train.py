"""`crossbatch train` and `crossbatch evaluate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from typing import Any

INTERRUPTED = 130  # what shells report after Ctrl-C

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this part."""
    app.command("train")(train)
    app.command("evaluate")(evaluate)


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe, such as recipes/demo.toml.")],
    data: Annotated[Path, typer.Option("--data", help="Dataset folder from prepare or synth.")],
    out: Annotated[Path, typer.Option("--out", help="Run folder; new, unless --resume.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key of the recipe."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, exactly.")
    ] = False,
    track: Annotated[
        list[str] | None, typer.Option("--track", help="Also log to tensorboard or mlflow.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train a two-tower model, stop when validation stops improving, and test it.

    Example: crossbatch train recipes/demo.toml --data demo/dataset --out runs/first
    --set sampler.capacity=512
    """
    from crossbatch.config import Recipe
    from crossbatch.data import open_dataset
    from crossbatch.training import Interrupted, fit
    from crossbatch.training.progress import Silent, Terminal
    from crossbatch.training.trackers import open_trackers

    loaded = Recipe.load(recipe, set_ or [])
    dataset = open_dataset(data)
    trackers = open_trackers(track or [], out)
    progress = Silent() if quiet else Terminal(loaded.train.metric)
    try:
        result = fit(dataset, loaded, out, resume=resume, progress=progress, trackers=trackers)
    except Interrupted as stop:
        sys.stderr.write(f"crossbatch: {stop}\n")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        progress.stop()
        for tracker in trackers:
            tracker.close()
    if not quiet:
        _print_table({f"{result['model']} / {result['sampler']}": result["test"]})
        typer.echo(f"run folder: {out}")


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    split: Annotated[str, typer.Option(help="valid or test.")] = "test",
    data: Annotated[
        Path | None, typer.Option(help="Dataset folder, if it has moved since training.")
    ] = None,
    exclude_history: Annotated[
        bool, typer.Option(help="Never recommend what the history shows.")
    ] = False,
    baselines: Annotated[bool, typer.Option(help="Also evaluate popularity and item-kNN.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Quiet = False,
) -> None:
    """Rank the whole catalogue for every user of a split; simple baselines beside the models.

    Example: crossbatch evaluate runs/first --split test
    """
    import json

    from crossbatch.training.saved import evaluate_runs

    table = evaluate_runs(
        runs, split, data=data, exclude_history=exclude_history, baselines=baselines
    )
    if as_json:
        typer.echo(json.dumps(table, indent=1))
    elif not quiet:
        _print_table({name: entry["metrics"] for name, entry in table.items()}, table)


COLUMNS = ("recall@20", "recall@50", "hit_rate@50", "ndcg@50", "ndcg_comirec@50", "coverage@50")


def _print_table(
    metrics: dict[str, dict[str, Any]], intervals: dict[str, dict[str, Any]] | None = None
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="percent, ± half a 95 % interval over users" if intervals else "percent")
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name, values in metrics.items():
        cells = []
        for column in COLUMNS:
            value = values.get(column)
            cell = "-" if value is None else f"{100 * value:.2f}"
            if intervals and column in intervals[name]["intervals"]:
                low, high = intervals[name]["intervals"][column]
                cell += f" ±{50 * (high - low):.2f}"
            cells.append(cell)
        table.add_row(name, *cells)
    Console().print(table)
