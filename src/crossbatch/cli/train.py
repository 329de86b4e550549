"""Commands that train and evaluate: `crossbatch train`, `evaluate` and `tune`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from crossbatch.cli.terminal import (
    FAILED,
    INTERRUPTED,
    AllowCode,
    AsJson,
    Data,
    MovedData,
    Overrides,
    Quiet,
    RecipeArgument,
    RecipeOption,
    comma_separated,
    opened_dataset,
    progress_bars,
    the_recipe,
)
from crossbatch.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Sequence

    import optuna


def train(
    data: Data,
    out: Annotated[Path, Option("--out", help="Run folder; new, unless --resume.")],
    recipe: RecipeArgument = None,
    recipe_option: RecipeOption = None,
    set_: Overrides = None,
    resume: Annotated[bool, Option("--resume", help="Continue the run in --out exactly.")] = False,
    start_from: Annotated[
        Path | None,
        Option("--from", help="Start from the weights of this run or bundle folder."),
    ] = None,
    track: Annotated[
        list[str] | None, Option("--track", help="Also log to tensorboard, mlflow or wandb.")
    ] = None,
    timeout: Annotated[
        float, Option(help="With several processes: seconds to wait for the others.")
    ] = 600.0,
    quiet: Quiet = False,
) -> None:
    """Train a two-tower model, stop when validation stops improving, and test it.

    Without a recipe it uses the defaults, which are the best settings we know. With several
    processes or machines, which share the recipe's batch: torchrun --nproc-per-node 2 -m crossbatch
    train ...

    Example: crossbatch train --data demo/dataset --out runs/first --set train.seed=1
    """
    from crossbatch.config import Recipe
    from crossbatch.training import Interrupted, fit
    from crossbatch.training.distributed.start import joined, together
    from crossbatch.training.progress import Progress, Terminal, open_trackers

    chosen = the_recipe(recipe, recipe_option)
    with joined(timeout) as ranks:
        first = ranks is None or ranks.first
        silent = quiet or not first
        loaded, dataset = together(
            ranks, lambda: (Recipe.load(chosen, set_ or []), opened_dataset(data, quiet=silent))
        )
        progress = Progress() if silent else Terminal(loaded.train.metric)
        try:
            with open_trackers((track or []) if first else [], out) as trackers:
                result = fit(
                    dataset,
                    loaded,
                    out,
                    resume=resume,
                    progress=progress,
                    trackers=trackers,
                    start_from=start_from,
                )
        except Interrupted as stop:
            if first:
                sys.stderr.write(f"crossbatch: {stop}\n")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            progress.stop()
    if not silent:
        split = "test" if "test" in result else "valid"  # a dataset may have no test users
        found, unseen = result[split], result.get(f"{split}_unseen", {})
        typer.echo(
            f"{result['model']} with {result['sampler']} negatives, best at step "
            f"{result['best_step']} of {result['steps']}: "
            f"{split} recall@50 {100 * found['recall@50']:.2f} %, "
            f"NDCG@50 {100 * found['ndcg@50']:.2f} %; without seen items "
            f"{_percent(unseen.get('recall@50'))} and {_percent(unseen.get('ndcg@50'))}  ->  {out}"
        )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def evaluate(
    runs: Annotated[list[Path], Argument(help="Run folders.")],
    split: Annotated[str, Option(help="valid or test.")] = "test",
    k: Annotated[
        list[int] | None,
        Option("-k", help="Length of the lists; may be repeated. Default: 20 and 50."),
    ] = None,
    metrics: Annotated[
        str | None,
        Option(
            metavar="NAME,…",
            help="Columns: recall, hit_rate, precision, mrr, map, ndcg, novelty, coverage, …",
        ),
    ] = None,
    by: Annotated[
        str | None,
        Option(help="Also by segments of users: 'activity', a user or context feature."),
    ] = None,
    data: MovedData = None,
    baselines: Annotated[
        str,
        Option(
            metavar="NAME,…|all|none",
            help="Baselines to tune and compare with: popularity, item_knn, rp3beta, ease, als.",
        ),
    ] = "all",
    no_baselines: Annotated[
        bool, Option("--no-baselines", help="The same as --baselines none.")
    ] = False,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rank the whole catalogue for every user of a split, and compare with tuned baselines.

    Every metric is measured twice: with all items, as in the paper, and without the items that the
    user has had. Baselines are tuned on validation users; RUN/baselines.json keeps what was found.

    Example: crossbatch evaluate runs/first -k 5 -k 10 --metrics recall,mrr,map --by activity
    """
    import json

    from crossbatch.evaluation.baselines import BASELINES, check_names
    from crossbatch.evaluation.runs import evaluate_runs
    from crossbatch.evaluation.tuned_baselines import measure_baselines
    from crossbatch.training.distributed.start import joined

    chosen = "none" if no_baselines else baselines
    known = {"all": tuple(BASELINES), "none": ()}
    names = known.get(chosen, tuple(comma_separated(chosen)))
    check_names(names)
    columns = _columns(metrics, k)
    with joined() as ranks, progress_bars(quiet=quiet) as report:

        def on_items(done: int, total: int) -> None:
            report("items", done, total)

        measured = evaluate_runs(
            runs, split, data=data, ranks=ranks, on_items=on_items, ks=k, by=by
        )
    if ranks is not None and not ranks.first:
        return
    notes: list[str] = []
    with progress_bars(quiet=quiet) as report:
        found = measure_baselines(
            runs, split, names=names, data=data, ks=k, say=notes.append, on_fit=report
        )
    if as_json:
        typer.echo(json.dumps(found | measured, indent=1))
    elif not quiet:
        _print_evaluation(found, measured, split, columns)
        _print_segments(measured, split, by, columns)
    for note in () if quiet else notes:
        typer.echo(f"crossbatch: {note}", err=True)


def tune(
    data: Data,
    out: Annotated[Path, Option("--out", help="Study folder; an existing one is continued.")],
    recipe: RecipeArgument = None,
    recipe_option: RecipeOption = None,
    trials: Annotated[int, Option(min=1, help="Total number, earlier ones included.")] = 20,
    space: Annotated[
        Path | None,
        Option(help="TOML of ranges and choices; default: learning rate, dropout, bank, …"),
    ] = None,
    set_: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Search for settings: train trials, prune bad ones early, write the best as a recipe.

    The recipe is the first trial. Test users are never evaluated. After Ctrl-C or a crash the same
    command continues.

    Example: crossbatch tune --recipe demo --data demo/dataset --out study --trials 30
    """
    from crossbatch.config import Recipe
    from crossbatch.training import Interrupted
    from crossbatch.training.progress import Progress, Terminal
    from crossbatch.tuning import read_space

    loaded = Recipe.load(the_recipe(recipe, recipe_option), set_ or [])
    searched = read_space(space) if space else None
    with needs_extra("tune", "tune"):
        from crossbatch.tuning.study import tune as run
    try:
        run(
            opened_dataset(data, quiet=quiet),
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


# Columns unless others are asked for: a table must fit 80 columns.
SHOWN = ("recall@20", "recall@50", "hit_rate@50", "ndcg@50", "ndcg_comirec@50", "cold_recall@50")
HEADS = {
    "recall": "R",
    "hit_rate": "HR",
    "precision": "P",
    "mrr": "MRR",
    "map": "MAP",
    "ndcg": "NDCG",
    "ndcg_comirec": "paper's\nNDCG",
    "novelty": "novelty\n",
    "content_diversity": "diversity\n(content)",
    "vector_diversity": "diversity\n(vectors)",
    "coverage": "coverage\n",
    **{f"{band}_recall": f"{band}\nR" for band in ("cold", "tail", "mid", "head")},
}


def _columns(metrics: str | None, ks: list[int] | None) -> dict[str, str]:
    """Metrics to print and their headings: as asked for, or those of `SHOWN`."""
    names = comma_separated(metrics or "recall,hit_rate,ndcg,mrr")
    for name in names:
        if name not in HEADS:
            raise ConfigError(f"--metrics must be of {', '.join(HEADS)}, got {name!r}")
    chosen = [f"{name}@{k}" for k in ks or (20, 50) for name in names]
    if metrics is None and ks is None:
        chosen = list(SHOWN)
    return {
        metric: HEADS[metric.partition("@")[0]] + metric[metric.index("@") :] for metric in chosen
    }


def _print_segments(
    runs: dict[str, dict[str, Any]], split: str, by: str | None, columns: dict[str, str]
) -> None:
    """Print a table of the segments of users a run, of the protocol that chose its best model."""
    for path, entry in runs.items() if by else ():
        unseen = entry["metric"]["exclude_seen"]
        parts = {
            f"{label}\n{part['num_users']:,} users": part.get("unseen", part) if unseen else part
            for label, part in entry["segments"].items()
        }
        protocol = "without seen items" if unseen else "all items"
        _print_table(parts, f"{split} by {by}, {protocol}: {path}", columns)


def _print_evaluation(
    baselines: dict[str, dict[str, Any]],
    runs: dict[str, dict[str, Any]],
    split: str,
    columns: dict[str, str],
) -> None:
    """Print a table a protocol, the baselines' settings and costs, and the time to quality."""
    from crossbatch.reports import baseline_tables
    from crossbatch.reports.runs import read_run

    table = baselines | runs
    unseen = {name: entry | entry["unseen"] for name, entry in table.items() if "unseen" in entry}
    _print_table(table, f"{split}: all items may be recommended, as in the paper", columns)
    if unseen:
        title = f"{split}: without items that the user has had (unseen)"
        _print_table(unseen, title, columns, CAPTION)
    tuned = baseline_tables.read_tuned(baselines)
    if not tuned:
        return
    about = next(iter(runs.values()))["metric"]
    deciding = baseline_tables.deciding_name(about)
    lines = [each.texts for each in tuned]
    _print_rows(baseline_tables.HEADS, lines, f"Baselines, tuned on {deciding}", words=2)
    for path in runs:
        run = read_run(Path(path))
        sentence = baseline_tables.time_to_quality(path, run.journal, baseline_tables.tuned(run))
        if sentence:
            typer.echo(f"{deciding}: {sentence}")


CAPTION = (
    "R recall, HR hit rate; the paper's NDCG is ComiRec's, NDCG the textbook one; "
    "cold: items that training never saw"
)


def _print_table(
    table: dict[str, dict[str, Any]], title: str, columns: dict[str, str], caption: str = ""
) -> None:
    known = [entry["metrics"] for entry in table.values()]
    shown = [c for c in columns if any(each.get(c) is not None for each in known)]
    lines = []
    for name, entry in table.items():
        line = [f"{entry['model']}\n{entry['sampler']}" if "model" in entry else name]
        lines.append(line + [_cell(entry, column) for column in shown])
    heads = ["", *(columns[column] for column in shown)]
    title = f"{title}\npercent ± half a 95 % interval over users"
    _print_rows(heads, lines, title, caption)


def _cell(entry: dict[str, Any], metric: str) -> str:
    """A metric in per cent, with half its interval if it is one of users."""
    value, interval = entry["metrics"].get(metric), entry["intervals"].get(metric)
    if value is None:
        return "–"
    return f"{100 * value:.1f}" + (f" ±{50 * (interval[1] - interval[0]):.1f}" if interval else "")


def _print_rows(
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    title: str,
    caption: str = "",
    words: int = 1,
) -> None:
    """Print a table whose first `words` columns are text, the others numbers."""
    from rich.box import SIMPLE
    from rich.table import Table

    from crossbatch.printing import console

    view = Table(box=SIMPLE, padding=(0, 1, 0, 0), title=title, caption=caption)
    for place, head in enumerate(heads):
        view.add_column(head, justify="left" if place < words else "right", no_wrap=not place)
    for line in lines:
        view.add_row(*line)
    console().print(view)


def _print_trial(metric: str, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    finished = [t.values[0] for t in study.trials if t.state.name == "COMPLETE" and t.values]
    value = f"{100 * trial.values[0]:.2f} %" if trial.values else "-"
    best = f" (best {100 * max(finished):.2f} %)" if finished else ""
    settings = " ".join(trial.user_attrs.get("overrides", []))
    word = trial.state.name.lower()
    typer.echo(f"trial {trial.number} {word}: {metric} {value}{best}  {settings}")
