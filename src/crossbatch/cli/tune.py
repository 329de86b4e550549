"""`crossbatch tune`: search for a recipe's settings on validation users."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossbatch.cli.terminal import FAILED, INTERRUPTED, Data, Overrides, Quiet
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    import optuna


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
    from crossbatch.training.progress import Silent, Terminal
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
            progress=Silent if quiet else partial(Terminal, loaded.train.metric),
            on_trial=(lambda *_: None) if quiet else _printer(loaded.train.metric),
        )
    except Interrupted:
        sys.stderr.write("crossbatch: stopped and saved; the same command continues\n")
        raise typer.Exit(INTERRUPTED) from None
    if not (out / "best.toml").is_file():
        sys.stderr.write(f"crossbatch: no trial finished; {out / 'trials.md'} lists them\n")
        raise typer.Exit(FAILED)
    if not quiet:
        typer.echo(f"{out / 'trials.md'}\n{out / 'best.toml'}")


def _printer(metric: str) -> Callable[[optuna.Study, optuna.trial.FrozenTrial], None]:
    def print_trial(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        finished = [t.values[0] for t in study.trials if t.state.name == "COMPLETE" and t.values]
        value = f"{100 * trial.values[0]:.2f} %" if trial.values else "-"
        best = f" (best {100 * max(finished):.2f} %)" if finished else ""
        settings = " ".join(trial.user_attrs.get("overrides", []))
        word = trial.state.name.lower()
        typer.echo(f"trial {trial.number} {word}: {metric} {value}{best}  {settings}")

    return print_trial
