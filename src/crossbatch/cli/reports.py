"""Commands that write tables and figures of runs: `report` and `reproduce`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from crossbatch.cli.terminal import (
    FAILED,
    INTERRUPTED,
    Overrides,
    Quiet,
    comma_separated,
    opened_dataset,
)
from crossbatch.errors import ConfigError, check_choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.config import Recipe
    from crossbatch.reproduce.design import PlannedRun


def report(
    runs: Annotated[list[Path], Argument(metavar="RUN…", help="Run folders; unfinished ones too.")],
    out: Annotated[Path, Option(help="The page to write.")] = Path("report.html"),
    markdown: Annotated[
        Path | None, Option(metavar="FILE", help="Also write the tables as Markdown.")
    ] = None,
    figures: Annotated[
        Path | None,
        Option(metavar="DIR", help="Also draw PNG and PDF figures (needs matplotlib)."),
    ] = None,
) -> None:
    """Compare runs: tables with intervals, curves, diagnostics and settings on one HTML page.

    The page is a single file that needs no network.

    Example: crossbatch report runs/first runs/second --out report.html
    """
    from crossbatch.reports.html import write_html
    from crossbatch.reports.runs import read_runs

    found = read_runs(runs)
    written = [write_html(found, out)]
    if markdown is not None:
        from crossbatch.reports.markdown import write_markdown

        written.append(write_markdown(found, markdown))
    if figures is not None:
        from crossbatch.reports.figures import write_figures

        written += write_figures(found, figures)
    for path in written:
        typer.echo(path)


def reproduce(
    experiment: Annotated[
        str, Argument(help="table1, table2, drift, curves, lemma, search or all.")
    ],
    out: Annotated[Path, Option("--out", help="Folder of the grid; an existing one is continued.")],
    data: Annotated[
        Path | None,
        Option("--data", help="Dataset folder. Without it nothing is trained."),
    ] = None,
    recipe: Annotated[
        str | None,
        Option(help="Recipe of all runs; model, sampler and seed come from the grid."),
    ] = None,
    set_: Overrides = None,
    settings: Annotated[
        Path | None, Option(help="settings.toml of a search: overrides per combination.")
    ] = None,
    models: Annotated[str, Option(help="Comma-separated.")] = "youtube_dnn,gru4rec,mind",
    samplers: Annotated[
        str,
        Option(help="Comma-separated; balanced, deferred: CBNS with other gradients."),
    ] = "uniform,in_batch,mixed,cross_batch,balanced",
    seeds: Annotated[str, Option(help="Comma-separated.")] = "0,1,2",
    sizes: Annotated[
        str, Option(help="Bank sizes of Table 2 as multiples of the batch.")
    ] = "0,1,4,9,19,39,79",
    among: Annotated[
        str, Option(help="Settings that search tries, comma-separated; default: all.")
    ] = "",
    budget: Annotated[
        float, Option(help="A quick look: steps per run, or a share of max_steps below 1.")
    ] = 0.0,
    jobs: Annotated[int, Option(min=1, help="Runs at a time, one thread each.")] = 1,
    paper: Annotated[
        bool | None,
        Option("--paper/--no-paper", help="Show the paper's numbers; default: by dataset."),
    ] = None,
    keep: Annotated[
        Path | None,
        Option(metavar="DIR", help="Also pack the small records that rebuild all tables."),
    ] = None,
    plan: Annotated[bool, Option("--plan", help="List the runs and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train missing runs and write a table or figure beside the paper's numbers.

    Finished runs are not trained again and killed ones resume: repeat the command to continue.

    Example: crossbatch reproduce table1 --data books --out paper --jobs 2
    """
    from crossbatch.reproduce import experiments
    from crossbatch.reproduce.design import STRATEGIES, Design
    from crossbatch.reproduce.folder import GridFolder
    from crossbatch.reproduce.search import read_settings

    # tables from records need no dataset
    dataset = None if data is None else opened_dataset(data, quiet=quiet)
    base = _base_recipe(recipe, set_ or [])
    if 0 < budget < 1 and not base.train.max_steps:
        raise ConfigError(
            f"--budget is {budget:g}, a share of train.max_steps, which the recipe leaves to the "
            "data: give a number of steps, or --set train.max_steps=…"
        )
    steps = _budget_steps(budget, base.train.max_steps)
    home = GridFolder(out if not steps or experiment == "search" else out / f"short-{steps}")
    facts = home.facts.get("dataset", {})
    samples, items = facts.get("eligible_samples", 0), facts.get("items", 0)
    names = comma_separated(models)
    if dataset is not None:
        from crossbatch.models import MODELS  # torch: only a grid that is trained needs it

        samples, items = dataset.num_samples(base.train.min_history), dataset.num_items
        for name in names:
            check_choice("--models", name, MODELS)
    strategies = comma_separated(samplers)
    for name in strategies:
        check_choice("--samplers", name, STRATEGIES)
    check_choice("experiment", experiment, experiments.EXPERIMENTS)
    design = Design(
        base,
        one_pass=math.ceil(samples / base.train.batch_size),
        models=names,
        strategies=strategies,
        seeds=_numbers("--seeds", seeds),
        settings=read_settings(settings) if settings else {},
        budget=steps,
        num_items=items,
        sizes=_numbers("--sizes", sizes),
        among=comma_separated(among),
    )
    runs = experiments.planned_runs(experiment, design)
    if plan:
        _print_plan(runs, home.path, jobs)
        return
    failed = False
    if dataset is not None:
        outcome = experiments.train(experiment, design, home, dataset, jobs=jobs, quiet=quiet)
        if outcome.interrupted:
            sys.stderr.write(
                f"crossbatch: stopped with {len(outcome.finished)} of {len(runs)} runs "
                "finished and the others saved; repeat the command to continue\n"
            )
            raise typer.Exit(INTERRUPTED)
        for folder, message in outcome.failed.items():
            sys.stderr.write(f"crossbatch: {home.path / folder} failed: {message}\n")
        failed = bool(outcome.failed)
    if paper is not None:
        home.add_facts(paper=paper)
    written = experiments.write(experiment, design, home)
    if keep is not None:
        written += experiments.keep(experiment, design, home, keep)
    if not quiet:
        typer.echo("\n".join(str(path) for path in written))
    if failed:
        raise typer.Exit(FAILED)


def _base_recipe(recipe: str | None, overrides: Sequence[str]) -> Recipe:
    """Return the shared recipe; without one the paper's: ids alone, 4 items before a target."""
    from crossbatch.config import PAPER, Recipe

    if recipe is not None:
        loaded = Recipe.load(recipe, list(overrides))
    else:
        loaded = Recipe.from_dict(PAPER).changed(list(overrides))
    return loaded if loaded.train.threads else loaded.changed(["train.threads=1"])


def _print_plan(runs: Sequence[PlannedRun], out: Path, jobs: int) -> None:
    from crossbatch.reproduce.grid import duration_text, minutes_left

    waiting = [run for run in runs if not run.is_finished(out)]
    for run in runs:
        typer.echo(f"{'to train' if run in waiting else 'finished':9} {run.folder}")
    minutes = minutes_left(runs, waiting, out)
    left = "" if minutes is None else f", about {duration_text(minutes / jobs)} with --jobs {jobs}"
    typer.echo(f"{len(waiting)} of {len(runs)} runs to train{left}")


def _budget_steps(budget: float, max_steps: int) -> int | None:
    if budget < 0:
        raise ConfigError(
            f"--budget must be a share of max_steps or a number of steps, got {budget}"
        )
    if budget == 0:
        return None
    return max(1, int(budget if budget >= 1 else budget * max_steps))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = (-1,)
    if min(numbers) < 0:
        raise ConfigError(f"{option} must be whole numbers, such as 0,1,2, got {text!r}")
    return numbers
