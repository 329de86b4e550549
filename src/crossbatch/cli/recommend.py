"""`crossbatch recommend`: items for one history, a test user of a run, or a file of users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from crossbatch.cli.terminal import (
    AllowCode,
    AsJson,
    MovedData,
    Overwrite,
    Quiet,
    comma_separated,
    progress_bars,
)
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from crossbatch.serving.recommender import Recommender, ScoredItem

LEAST_HISTORY = 10  # rows of a long history that are shown beside a short list


def recommend(
    source: Annotated[Path, Argument(help="Bundle, or run folder of a training.")],
    history: Annotated[
        str | None, Option(help="Item ids of the source, oldest first, comma-separated.")
    ] = None,
    user: Annotated[
        int | None, Option(help="Of a run: the n-th test user, with their later choices.")
    ] = None,
    users: Annotated[
        Path | None, Option(help="File of users: Parquet, CSV, JSON lines; needs --out.")
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="File to write the lists to.")] = None,
    k: Annotated[int, Option("-k", help="Number of items.")] = 20,
    user_features: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE,...", help="Features of the user.")
    ] = None,
    context: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE,...", help="Context of the request.")
    ] = None,
    exclude_seen: Annotated[bool, Option(help="Leave out items of the history.")] = True,
    filter_: Annotated[
        str | None,
        Option(
            "--filter",
            metavar="JSON",
            help="""Conditions on filter columns: '{"in_stock": true}'.""",
        ),
    ] = None,
    candidates: Annotated[str | None, Option(help="Only these items, comma-separated.")] = None,
    exclude: Annotated[str, Option(help="Not these items, comma-separated.")] = "",
    data: MovedData = None,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Recommend items for a history, or for every user of a file.

    Examples: crossbatch recommend first.bundle --history i17,i4 -k 10;
    crossbatch recommend first.bundle --users users.parquet --out lists.parquet
    """
    if sum(option is not None for option in (history, user, users)) != 1:
        raise ConfigError("pass either --history ITEM,ITEM or --user N or --users FILE")
    if (users is None) != (out is None):
        raise ConfigError("--users FILE and --out FILE belong together")
    if users is not None and (user_features or context):
        raise ConfigError(
            "features of many users are columns of --users, not --user-features or --context"
        )
    limits: dict[str, Any] = {
        "filter": _conditions(filter_),
        "candidates": None if candidates is None else comma_separated(candidates),
        "exclude": comma_separated(exclude),
    }
    if user is not None:
        if any(limits.values()):
            raise ConfigError("--user shows a test user as trained: leave the filters out")
        shown, targets, items = _test_user(source, data, user, k, exclude_seen=exclude_seen)
        _show(shown, targets, items, [], as_json=as_json)
        return
    from crossbatch.serving.from_run import open_recommender

    with progress_bars(quiet=quiet):  # of what is fetched from an object store
        recommender = open_recommender(source, data=data)
    if users is not None and out is not None:
        options = {"k": k, "exclude_seen": exclude_seen, "overwrite": overwrite, **limits}
        _many(recommender, users, out, options, quiet=quiet)
        return
    assert history is not None
    keys = comma_separated(history)
    (answer,) = recommender.recommend(
        [keys],
        k,
        exclude_seen=exclude_seen,
        user_features=[_features("--user-features", user_features)],
        context=[_features("--context", context)],
        **limits,
    )
    if answer.popular:
        raise ConfigError(
            f"--history {','.join(keys)!r} holds no item of the catalogue that could be read; "
            "check the ids"
        )
    if answer.unknown:
        typer.echo(f"crossbatch: unknown items left out: {', '.join(answer.unknown)}", err=True)
    known = [key for key in keys if key not in answer.unknown]
    shown = recommender.item_titles(recommender.item_ids(known).tolist())
    _show(shown, [], answer.items, answer.unknown, as_json=as_json)


def _conditions(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    import json

    try:
        conditions = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--filter {text!r} is not JSON: {error}") from None
    if not isinstance(conditions, dict):
        raise ConfigError(f'--filter must be an object such as {{"in_stock": true}}, got {text}')
    return conditions


def _test_user(
    source: Path, data: Path | None, number: int, k: int, *, exclude_seen: bool
) -> tuple[list[str], list[int], list[ScoredItem]]:
    """Return history, later choices and recommendations of a test user of a run."""
    from crossbatch.serving.bundle.manifest import MANIFEST
    from crossbatch.serving.from_run import held_out_user, run_recommender
    from crossbatch.training.run_folder import open_run

    if (source / MANIFEST).is_file():
        raise ConfigError("--user needs a run folder: a bundle keeps no users")
    saved = open_run(source, data=data)
    history, targets, profiles = held_out_user(saved, number)
    recommender = run_recommender(saved)
    ranking = recommender.rank([history], k, exclude_seen=exclude_seen, profiles=profiles)
    return recommender.item_titles(history), targets, recommender.named(ranking, 0)


def _many(
    recommender: Recommender, users: Path, out: Path, options: dict[str, Any], *, quiet: bool
) -> None:
    from crossbatch.serving.tables import recommend_users

    with progress_bars(quiet=quiet) as progress:
        tally = recommend_users(recommender, users, out, progress=progress, **options)
    if not quiet:
        typer.echo(f"{out}: {tally.rows:,} items for {tally.users:,} users")
        if tally.unknown:
            typer.echo(f"{tally.unknown:,} of {tally.items:,} history items are unknown: left out")
        if tally.popular:
            typer.echo(f"{tally.popular:,} users without a known item: the most popular items")


def _features(option: str, values: list[str] | None) -> dict[str, Any]:
    """Parse `name=value,name=value`, given once or several times."""
    features: dict[str, Any] = {}
    for part in ",".join(values or []).split(","):
        name, separator, value = part.partition("=")
        if part.strip() and not (separator and name.strip()):
            raise ConfigError(f"{option} needs NAME=VALUE, got {part!r}")
        if part.strip():
            features[name.strip()] = value.strip()
    return features


def _show(
    history: list[str],
    targets: list[int],
    items: list[ScoredItem],
    unknown: list[str],
    *,
    as_json: bool,
) -> None:
    if not as_json:
        _print_table(history, targets, items)
        return
    import json
    from dataclasses import asdict

    document = {"items": [asdict(item) for item in items], "unknown": unknown}
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


def _print_table(history: list[str], targets: list[int], items: list[ScoredItem]) -> None:
    from rich.table import Table
    from rich.text import Text

    from crossbatch.printing import console

    if len(history) > (most := max(len(items), LEAST_HISTORY)):
        earlier = len(history) - most + 1
        history = [f"… {earlier} earlier items", *history[earlier:]]
    behind = any(item.because for item in items)
    several = not behind and any(item.interest for item in items)
    table = Table(show_lines=False)
    table.add_column("history (newest last)")
    table.add_column("recommended")
    table.add_column("item", no_wrap=True)
    table.add_column("score", justify="right")
    if several:
        table.add_column("interest", justify="right")
    if behind:
        table.add_column("because of", no_wrap=True)
    for row in range(max(len(history), len(items))):
        cells: list[str | Text] = [history[row] if row < len(history) else ""]
        if row < len(items):
            item = items[row]
            chosen = item.id in targets
            cells.append(Text(f"{item.title} ✓", "bold green") if chosen else item.title)
            cells += [item.key, f"{item.score:.3f}"]
            cells += [str(item.interest + 1)] if several else []
            cells += [item.because or ""] if behind else []
        table.add_row(*cells)
    if targets:
        table.caption = "✓ chosen by the user later"
    console().print(table)
