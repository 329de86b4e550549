"""Commands that train and evaluate: `crossbatch train`, `evaluate` and `tune`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossbatch.cli.terminal import (
    FAILED,
    INTERRUPTED,
    AsJson,
    Data,
    MovedData,
    Overrides,
    Quiet,
)
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    import optuna


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe, such as recipes/demo.toml.")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Run folder; new, unless --resume.")],
    set_: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out exactly.")
    ] = False,
    track: Annotated[
        list[str] | None, typer.Option("--track", help="Also log to tensorboard or mlflow.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="With several processes: seconds to wait for the others.")
    ] = 600.0,
    quiet: Quiet = False,
) -> None:
    """Train a two-tower model, stop when validation stops improving, and test it.

    With several processes or machines, which share the recipe's batch: torchrun --nproc-per-node 2
    -m crossbatch train ...

    Example: crossbatch train recipes/demo.toml --data demo/dataset --out runs/first
    --set sampler.capacity=512
    """
    from crossbatch.config import Recipe
    from crossbatch.data import open_dataset
    from crossbatch.training import Interrupted, fit
    from crossbatch.training.distributed.start import joined, together
    from crossbatch.training.progress import Progress, Terminal
    from crossbatch.training.trackers import open_trackers

    with joined(timeout) as ranks:
        loaded, dataset = together(
            ranks, lambda: (Recipe.load(recipe, set_ or []), open_dataset(data))
        )
        silent = quiet or (ranks is not None and not ranks.first)
        trackers = () if ranks and not ranks.first else open_trackers(track or [], out)
        progress = Progress() if silent else Terminal(loaded.train.metric)
        try:
            result = fit(dataset, loaded, out, resume=resume, progress=progress, trackers=trackers)
        except Interrupted as stop:
            if ranks is None or ranks.first:
                sys.stderr.write(f"crossbatch: {stop}\n")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            progress.stop()
            for tracker in trackers:
                tracker.close()
    if not silent:
        test = result["test"]
        typer.echo(
            f"{result['model']} with {result['sampler']} negatives, best at step "
            f"{result['best_step']} of {result['steps']}: "
            f"test recall@50 {100 * test['recall@50']:.2f} %, "
            f"NDCG@50 {100 * test['ndcg@50']:.2f} %  ->  {out}"
        )


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    split: Annotated[str, typer.Option(help="valid or test.")] = "test",
    data: MovedData = None,
    exclude_history: Annotated[
        bool, typer.Option(help="Do not recommend items of the history.")
    ] = False,
    baselines: Annotated[bool, typer.Option(help="Also evaluate popularity and item-kNN.")] = True,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rank the whole catalogue for every user of a split, and compare with simple baselines.

    Example: crossbatch evaluate runs/first --split test
    """
    import json

    from crossbatch.evaluation.runs import evaluate_runs
    from crossbatch.training.distributed.start import joined

    with joined() as ranks:
        table = evaluate_runs(
            runs,
            split,
            data=data,
            exclude_history=exclude_history,
            baselines=baselines,
            ranks=ranks,
        )
    if ranks is not None and not ranks.first:
        return
    if as_json:
        typer.echo(json.dumps(table, indent=1))
    elif not quiet:
        _print_table(table, split)


def tune(
    recipe: Annotated[Path, typer.Argument(help="Recipe to start from; it is the first trial.")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Study folder; an existing one is continued.")],
    trials: Annotated[int, typer.Option(min=1, help="Total number, earlier ones included.")] = 20,
    space: Annotated[
        Path | None,
        typer.Option(help="TOML of ranges and choices; default: learning rate, dropout, bank, …"),
    ] = None,
    set_: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Search for settings: train trials, prune bad ones early, write the best as a recipe.

    Test users are never evaluated. After Ctrl-C or a crash the same command continues.

    Example: crossbatch tune recipes/demo.toml --data demo/dataset --out study --trials 30
    """
    from crossbatch.config import Recipe
    from crossbatch.data import open_dataset
    from crossbatch.training import Interrupted
    from crossbatch.training.progress import Progress, Terminal
    from crossbatch.tuning import read_space

    loaded = Recipe.load(recipe, set_ or [])
    searched = read_space(space) if space else None
    try:
        from crossbatch.tuning.study import tune as run
    except ModuleNotFoundError as error:
        raise ConfigError(f"tune needs {error.name}: pip install 'crossbatch[tune]'") from None
    try:
        run(
            open_dataset(data),
            loaded,
            out,
            trials=trials,
            space=searched,
            progress=Progress if quiet else partial(Terminal, loaded.train.metric),
            on_trial=(lambda *_: None) if quiet else partial(_print_trial, loaded.train.metric),
        )
    except Interrupted:
        sys.stderr.write("crossbatch: stopped and saved; the same command continues\n")
        raise typer.Exit(INTERRUPTED) from None
    if not (out / "best.toml").is_file():
        sys.stderr.write(f"crossbatch: no trial finished; {out / 'trials.md'} lists them\n")
        raise typer.Exit(FAILED)
    if not quiet:
        typer.echo(f"{out / 'trials.md'}\n{out / 'best.toml'}")


# Metric and the heading it gets: a table must fit 80 columns.
COLUMNS = {
    "recall@20": "R@20",
    "recall@50": "R@50",
    "hit_rate@50": "HR@50",
    "ndcg@50": "NDCG@50",
    "ndcg_comirec@50": "paper's\nNDCG@50",
    "cold_recall@50": "cold\nR@50",
}


def _print_table(table: dict[str, dict[str, Any]], split: str) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    shown = [c for c in COLUMNS if any(c in entry["intervals"] for entry in table.values())]
    view = Table(
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        title=f"{split}, percent ± half a 95 % interval over users",
        caption="R recall, HR hit rate; the paper's NDCG is ComiRec's, NDCG the textbook one; "
        "cold: items that training never saw",
    )
    view.add_column("", no_wrap=True)
    for column in shown:
        view.add_column(COLUMNS[column], justify="right")
    for name, entry in table.items():
        cells = []
        for column in shown:
            low, high = entry["intervals"][column]
            cells.append(f"{100 * entry['metrics'][column]:.1f} ±{50 * (high - low):.1f}")
        label = f"{entry['model']}\n{entry['sampler']}" if "model" in entry else name
        view.add_row(label, *cells)
    Console().print(view)


def _print_trial(metric: str, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    finished = [t.values[0] for t in study.trials if t.state.name == "COMPLETE" and t.values]
    value = f"{100 * trial.values[0]:.2f} %" if trial.values else "-"
    best = f" (best {100 * max(finished):.2f} %)" if finished else ""
    settings = " ".join(trial.user_attrs.get("overrides", []))
    word = trial.state.name.lower()
    typer.echo(f"trial {trial.number} {word}: {metric} {value}{best}  {settings}")
