"""Commands that create and describe datasets."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from crossbatch.cli.terminal import (
    AsJson,
    DatasetOut,
    Overwrite,
    Quiet,
    opened_dataset,
    progress_bars,
)
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from crossbatch.data import Column, Source

BAR = 40
LOG_OPTIONS = (
    *("user", "item", "time", "rating", "event", "weight", "session", "impressions"),
    *("impressions_file", "request", "time_unit", "items", "users", "title"),
)

app = typer.Typer(no_args_is_help=True, help="Inspect datasets.")


def prepare(
    source: Annotated[
        Path, Argument(help="Raw log: a file, a folder, a zip, or a quoted pattern of files.")
    ],
    out: DatasetOut,
    format_name: Annotated[
        str | None,
        Option("--format", help="table, amazon, movielens, comirec or recbole; default: detected."),
    ] = None,
    user: Annotated[str | None, Option(help="Column of user ids.")] = None,
    item: Annotated[str | None, Option(help="Column of item ids.")] = None,
    time: Annotated[str | None, Option(help="Column of times; 'none': file order.")] = None,
    rating: Annotated[str | None, Option(help="Column of ratings.")] = None,
    event: Annotated[str | None, Option(help="Column of the kinds of events.")] = None,
    event_weights: Annotated[
        str | None,
        Option(help="view=0,click=1,buy=5; 0: only in histories; kinds not named: left out."),
    ] = None,
    weight: Annotated[str | None, Option(help="Column of the events' weights.")] = None,
    session: Annotated[str | None, Option(help="Column of the events' sessions.")] = None,
    session_gap: Annotated[
        float | None, Option(help="Minutes of pause after which a session begins.")
    ] = None,
    impressions: Annotated[
        str | None, Option(help="Column of items shown with the event: lists, or a|b|c.")
    ] = None,
    impressions_file: Annotated[
        Path | None, Option(help="File that has this column, where the log has not.")
    ] = None,
    request: Annotated[
        str | None, Option(help="Column of both files: which list belongs to an event.")
    ] = None,
    context: Annotated[
        list[str] | None,
        Option(
            help="Feature of the request, NAME:KIND[:SEPARATOR], or hour_of_day, day_of_week, "
            "since_last, session_items; may be repeated."
        ),
    ] = None,
    time_unit: Annotated[str | None, Option(help="auto, s, ms, us, ns or order.")] = None,
    items: Annotated[Path | None, Option(help="File of item content.")] = None,
    users: Annotated[Path | None, Option(help="File of user content.")] = None,
    title: Annotated[str | None, Option(help="Item column that names an item.")] = None,
    item_feature: Annotated[
        list[str] | None, Option(help="NAME:KIND[:SEPARATOR]; may be repeated.")
    ] = None,
    user_feature: Annotated[
        list[str] | None, Option(help="NAME:KIND[:SEPARATOR]; may be repeated.")
    ] = None,
    item_vectors: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=PATH",
            help="Precomputed vectors of items: a .npy with .keys.txt beside it, a .parquet with "
            "a list column, or a folder of KEY.npy; may be repeated.",
        ),
    ] = None,
    min_item_count: Annotated[int | None, Option(help="Default 5.")] = None,
    min_user_count: Annotated[int | None, Option(help="Default 5.")] = None,
    core: Annotated[bool, Option("--core", help="Repeat the filters to a k-core.")] = False,
    split: Annotated[str | None, Option(help="user, leave_last_out, time or day.")] = None,
    test_day: Annotated[
        str | None, Option(help="Day of test of --split day, YYYY-MM-DD; default: the last.")
    ] = None,
    valid_share: Annotated[float | None, Option(help="Default 0.1.")] = None,
    test_share: Annotated[float | None, Option(help="Default 0.1.")] = None,
    ties: Annotated[str | None, Option(help="shuffle, stable or item.")] = None,
    cold_items: Annotated[float | None, Option(help="Share withheld from training.")] = None,
    min_rating: Annotated[float | None, Option(help="Leave out lower ratings.")] = None,
    max_bad_lines: Annotated[
        str, Option(help="Refused lines that are tolerated: a share (0.1%) or a number.")
    ] = "0.1%",
    text_model: Annotated[
        Path | None, Option(help="Sentence model on disk: text becomes its vectors.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        Option(
            help="A tokenizer.json or its folder, or 'train' on the items' text: text becomes "
            "token ids, for towers that read text."
        ),
    ] = None,
    max_tokens: Annotated[int | None, Option(help="Most token ids of a text; default 64.")] = None,
    seed: Annotated[int | None, Option(help="Default 1230, as ComiRec.")] = None,
    shards: Annotated[
        int | None,
        Option(help="Training sequences in so many parts, read one after the other."),
    ] = None,
    growing: Annotated[
        bool, Option("--growing", help="Keep what --append needs to add days later.")
    ] = False,
    append: Annotated[
        Path | None, Option(help="Dataset to add SOURCE to: old ids keep their numbers.")
    ] = None,
    engine: Annotated[
        str, Option(help="polars, or spark for a log on a cluster; same result.")
    ] = "polars",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Turn a raw log into a dataset folder: read, filter, split and encode it.

    With --append it adds a further day to a dataset.

    Example: crossbatch prepare clicks.parquet --user user_id --item sku --time ts
    --items products.parquet --out shop
    """
    given = dict(locals())  # the options by name
    from crossbatch.data.prepare import append as run_append
    from crossbatch.data.prepare import prepare as run
    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.readers import ReadOptions, open_source
    from crossbatch.data.readers.source import CLOCK
    from crossbatch.files import check_target

    given["max_bad_lines"] = _limit(max_bad_lines)
    given["event_weights"] = _weights(event_weights)
    check_target(out, overwrite=overwrite)
    reading = ReadOptions(
        item_columns=_columns(item_feature),
        user_columns=_columns(user_feature),
        context=_columns([text for text in context or () if text not in CLOCK]) or (),
        clock=tuple(text for text in context or () if text in CLOCK),
        **{name: given[name] for name in LOG_OPTIONS},
    )
    with progress_bars(quiet=quiet):  # of what is fetched from an object store
        raw = open_source(source, format_name, reading)
    raw = _with_vectors(_with_text(raw, text_model, tokenizer, max_tokens), item_vectors)
    if not quiet and format_name is None:
        typer.echo(f"reading {source} as {raw.format}")
    chosen = {field.name: given[field.name] for field in fields(PrepareOptions)}
    with progress_bars(quiet=quiet) as progress:
        if append is not None:
            if engine != "polars":
                raise ConfigError(f"--append needs --engine polars, got {engine}")
            chosen["core"] = core or None
            if max_bad_lines == "0.1%":  # not given
                del chosen["max_bad_lines"]
            manifest = run_append(raw, append, out, chosen, overwrite=overwrite, progress=progress)
        else:
            options = PrepareOptions.merged(raw.defaults, chosen)
            manifest = run(raw, out, options, engine=engine, overwrite=overwrite, progress=progress)
    if not quiet:
        _summary(manifest, out)


def synth(
    out: Annotated[Path | None, Option("--out", "-o", help="Dataset folder to create.")] = None,
    raw: Annotated[Path | None, Option(help="Write the raw log as Parquet instead.")] = None,
    users: Annotated[int, Option(help="Number of users.")] = 6_000,
    items: Annotated[int, Option(help="Number of items.")] = 3_000,
    interactions: Annotated[int, Option(help="Number of interactions.")] = 120_000,
    seed: Annotated[int, Option(help="The same seed gives the same bytes.")] = 0,
    cold: Annotated[float, Option(help="Share of items withheld from training.")] = 0.05,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Generate a dataset with known structure: drifting interests, descriptive titles, cold items.

    Example: crossbatch synth --out toy --users 2000 --items 1000 --interactions 40000
    """
    from crossbatch.data.prepare import prepare as run
    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.synthetic import SynthOptions, synthetic_source, write_raw

    if out is None and raw is None:
        raise ConfigError("say where to write: --out DATASET, or --raw DIR for the raw log")
    options = SynthOptions(users, items, interactions, seed)
    if raw is not None:
        write_raw(options, raw, overwrite=overwrite)
        if not quiet:
            typer.echo(f"raw log written to {raw}: crossbatch prepare {raw} --out DATASET")
    if out is not None:
        chosen = PrepareOptions(cold_items=cold)
        with progress_bars(quiet=quiet) as progress:
            manifest = run(
                synthetic_source(options), out, chosen, overwrite=overwrite, progress=progress
            )
        if not quiet:
            _summary(manifest, out)


@app.command("describe")
def describe_command(
    dataset: Annotated[Path, Argument(help="Dataset folder.")],
    picture: Annotated[Path | None, Option(help="Also plot it: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
    verify: Annotated[bool, Option("--verify", help="Check every file's checksum.")] = False,
) -> None:
    """Describe a dataset as a table and, with --picture, as a plot.

    Example: crossbatch data describe shop --picture shop.png
    """
    from crossbatch.data.dataset.describe import describe, plot

    opened = opened_dataset(dataset, quiet=False)
    if verify:
        opened.verify()
    facts = describe(opened)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print_facts(facts, dataset)
    if picture is not None:
        plot(opened, picture)
        typer.echo(f"picture written to {picture}", err=as_json)


def _columns(specifications: list[str] | None) -> tuple[Column, ...] | None:
    """Parse `name:kind` and `name:kind:separator`."""
    from crossbatch.data import Column

    if specifications is None:
        return None
    columns = []
    for text in specifications:
        name, _, rest = text.partition(":")
        kind, _, separator = rest.partition(":")
        if not name or not kind:
            raise ConfigError(f"a feature is NAME:KIND or NAME:KIND:SEPARATOR, got {text!r}")
        columns.append(Column(name, kind, separator or "|"))
    return tuple(columns)


def _with_vectors(source: Source, specifications: list[str] | None) -> Source:
    """Add files of precomputed vectors, each `name=path`, to the items' features."""
    files: dict[str, Path] = {}
    for text in specifications or ():
        name, _, path = text.partition("=")
        if not name or not path or name in files:
            raise ConfigError(f"--item-vectors needs NAME=PATH, each name once, got {text!r}")
        files[name] = Path(path)
    return replace(source, item_vectors=files) if files else source


def _with_text(
    source: Source, model: Path | None, tokenizer: str | None, max_tokens: int | None
) -> Source:
    """Encode the items' text by a sentence model or as token ids, instead of hashed words.

    `tokenizer` is a file or its folder, or "train" for one that is trained on the text.
    """
    columns = []
    for column in source.item_columns:
        if model is not None and column.kind == "text":
            column = replace(column, kind="sentence", model=str(model))
        if tokenizer is not None and column.kind in ("text", "tokens"):
            column = replace(column, kind="tokens", model="" if tokenizer == "train" else tokenizer)
        if max_tokens is not None and column.kind == "tokens":
            column = replace(column, max_tokens=max_tokens)
        columns.append(column)
    given = tokenizer is not None or max_tokens is not None
    if given and not any(column.kind == "tokens" for column in columns):
        raise ConfigError(
            "--tokenizer and --max-tokens are for text of items, of which the source has none: "
            "name it with --item-feature NAME:tokens"
        )
    return replace(source, item_columns=tuple(columns))


def _limit(text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        raise ConfigError(f"--max-bad-lines is a share (0.1%) or a number, got {text!r}") from error


def _weights(text: str | None) -> dict[str, float] | None:
    """Parse `click=1,buy=5`."""
    if text is None:
        return None
    weights: dict[str, float] = {}
    for part in text.split(","):
        kind, _, number = part.rpartition("=")
        try:
            weights[kind.strip()] = float(number)
        except ValueError:
            kind = ""
        if not kind.strip():
            raise ConfigError(f"--event-weights are KIND=NUMBER,KIND=NUMBER, got {text!r}")
    return weights


def _summary(manifest: dict[str, Any], out: Path) -> None:
    counts, reading, accounting = manifest["counts"], manifest["reading"], manifest["accounting"]
    typer.echo(
        f"{out}: {counts['users']:,} users, {counts['items']:,} items, "
        f"{counts['interactions']:,} interactions; train {counts['train_users']:,} users with "
        f"{counts['eligible_samples']:,} samples, valid {counts['valid_users']:,}, "
        f"test {counts['test_users']:,} users"
    )
    dropped = {
        "refused lines": sum(reading["bad_lines"].values()),
        "below the rating": reading["below_rating"],
        "other events": reading.get("other_events", 0),
        "rare items": accounting["dropped_by_item"],
        "short users": accounting["dropped_by_user"],
        "withheld cold items": accounting["dropped_cold"],
    }
    left_out = ", ".join(f"{number:,} ({why})" for why, number in dropped.items() if number)
    typer.echo(f"{reading['lines']:,} lines read; left out: {left_out or 'none'}")
    if counts["train_users_too_short"]:
        typer.echo(f"{counts['train_users_too_short']:,} training users are too short for a sample")
    for note in reading["notes"]:
        typer.echo(f"note: {note}")


def _print_facts(facts: dict[str, Any], dataset: Path) -> None:
    from rich.table import Table

    from crossbatch.printing import console

    screen = console()
    table = Table(title=str(dataset), show_header=False)
    for section in ("counts", "lengths", "popularity", "cold", "order", "time"):
        for name, value in (facts[section] or {}).items():
            if not isinstance(value, dict):
                table.add_row(section, name.replace("_", " "), _number(value))
            elif name != "histogram":
                table.add_row(
                    section, name, "  ".join(f"{k} {_number(v)}" for k, v in value.items())
                )
    for owner, features in facts["features"].items():
        for name, entry in features.items():
            text = (
                f"{entry['encoder']}, {entry['num_values']:,} values, {entry['coverage']:.1%} known"
            )
            table.add_row(f"{owner} feature", name, text)
    screen.print(table)
    histogram = facts["lengths"]["histogram"]
    largest = max(histogram.values())
    screen.print("users by sequence length")
    for name, count in histogram.items():
        screen.print(f"{name:>12} {'█' * max(round(BAR * count / largest), count > 0)} {count:,}")


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
