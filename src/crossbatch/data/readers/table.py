"""Any log as a table: Parquet, CSV/TSV or JSON lines, with item and user tables beside it.

A folder may hold the log in parts (`interactions/*.parquet` or `interactions.parquet`) and the
content as `items.*` and `users.*`; elsewhere columns and files are named by options.  Parts may lie
in folders that name a column, `day=2024-01-31/part-0.parquet`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import polars as pl

from crossbatch.data.readers.source import Column, Part, ReadOptions, Source, Tally
from crossbatch.data.readers.table_files import (
    SUFFIXES,
    check_parts,
    column_names,
    data_files,
    file_kind,
    folder_values,
    infer_columns,
    part_columns,
    read_table,
)
from crossbatch.data.readers.text_tables import read_delimited, read_json_lines
from crossbatch.errors import ConfigError, DataError

USUAL_NAMES = {
    "user": ("user", "user_id", "userId", "userid", "uid", "reviewerID", "session_id"),
    "item": ("item", "item_id", "itemId", "itemid", "iid", "asin", "movieId", "product_id"),
    "time": ("timestamp", "time", "ts", "datetime", "date", "unixReviewTime"),
}
BATCH_ROWS = 1 << 18


def recognises(path: Path) -> bool:
    """Return whether a path is a log whose columns have usual names."""
    try:
        logs = _logs(path)
        names = part_columns(logs[0])
    except (DataError, IndexError):
        return False
    return all(set(usual) & set(names) for usual in USUAL_NAMES.values())


def open_source(path: Path, options: ReadOptions) -> Source:
    """Return a table as a source."""
    logs = _logs(path)
    columns = _columns(logs[0], options)
    check_parts(logs, columns)
    parts = tuple(partial(_frames, log.absolute(), columns) for log in logs)
    items = Path(options.items) if options.items else _beside(path, "items")
    users = Path(options.users) if options.users else _beside(path, "users")
    item_key, item_columns = _content(items, "item", columns["item"], options.item_columns)
    user_key, user_columns = _content(users, "user", columns["user"], options.user_columns)
    names = {column.name for column in item_columns}
    title = options.title or ("title" if "title" in names else None)
    wanted = sorted(names | {title} if title else names)
    user_names = sorted(column.name for column in user_columns)
    shown = _shown_files(options)
    content = tuple(file for file in (items, users, *shown) if file is not None)
    return Source(
        format="table",
        files=(*logs, *content),
        content_files=content,
        batches=lambda tally: _batches(parts, columns, tally),
        parts=parts if "time" in columns else (),  # else a row's time is its place in the whole log
        time_unit="order" if options.time == "none" else options.time_unit or "auto",
        item_table=partial(read_table, items, item_key, wanted) if items else None,
        user_table=partial(read_table, users, user_key, user_names) if users else None,
        item_columns=item_columns,
        user_columns=user_columns,
        title=title if items else None,
        expected_rows=_rows(logs),
        event_columns=tuple(options.event_columns),
        shown=partial(_shown, shown, options) if shown else None,
        context=options.context,
        clock=options.clock,
    )


def _logs(path: Path) -> list[Path]:
    """Return the files of the log in order."""
    if path.is_dir():
        whole = _beside(path, "interactions")
        if whole is not None:
            return [whole]
        parts = path / "interactions"
        path = parts if parts.is_dir() else path
    content = {_beside(path, "items"), _beside(path, "users")}
    files = [file for file in data_files(path) if file not in content]
    if not files:
        raise DataError(f"{path} holds content tables but no log")
    kinds = {file_kind(file) for file in files}
    if len(kinds) > 1:
        raise DataError(
            f"{path} holds files of several kinds ({', '.join(sorted(kinds))}): name one"
        )
    return files


def _beside(path: Path, stem: str) -> Path | None:
    if not path.is_dir():
        return None
    found = [path / f"{stem}{suffix}" for suffix in SUFFIXES]
    return next((file for file in found if file.is_file()), None)


def _columns(log: Path, options: ReadOptions) -> dict[str, str]:
    """Return the file's columns of user, item, time and rating, as named or by usual names."""
    names = part_columns(log)
    chosen = {"user": options.user, "item": options.item, "time": options.time}
    columns: dict[str, str] = {}
    for ours, usual in USUAL_NAMES.items():
        if ours == "time" and options.time == "none":
            continue
        found = [chosen[ours]] if chosen[ours] else [name for name in usual if name in names]
        if not found or found[0] not in names:
            remedy = " (or --time none if the order of the log counts)" if ours == "time" else ""
            raise ConfigError(
                f"{log.name} has no {ours} column {chosen[ours] or 'of a usual name'}: "
                f"name it with --{ours}{remedy}; its columns are {', '.join(names)}"
            )
        columns[ours] = str(found[0])
    rating = options.rating or ("rating" if "rating" in names else None)
    columns |= {"rating": rating} if rating else {}
    readers: dict[str, str] = {}  # our names by the file's
    for ours, theirs in columns.items():
        if theirs in readers:
            raise ConfigError(
                f"column {theirs!r} of {log.name} would be read as both {readers[theirs]} and "
                f"{ours}: name others with --{readers[theirs]} or --{ours}"
            )
        readers[theirs] = ours
    for ours, theirs in options.event_columns.items():
        _require(log, names, theirs, ours.partition(".")[0])
    return columns | options.event_columns


def _require(file: Path, names: list[str], column: str, option: str) -> None:
    if column not in names:
        raise ConfigError(
            f"{file.name} has no column {column!r} for --{option}; its columns are "
            f"{', '.join(names)}"
        )


def _shown_files(options: ReadOptions) -> list[Path]:
    """Return the parts of the second file of impressions, if there is one."""
    if options.impressions_file is None:
        return []
    files = data_files(Path(options.impressions_file))
    names = part_columns(files[0])
    for option in ("impressions", "request"):
        _require(files[0], names, getattr(options, option), option)
    return files


def _shown(files: list[Path], options: ReadOptions) -> Iterator[pl.DataFrame]:
    """Yield the lists of the second file; lines that cannot be read are an error."""
    columns = {"request": str(options.request), "impressions": str(options.impressions)}
    tally = Tally(0)
    for file in files:
        yield from _frames(file, columns, tally)
        tally.check()


def _batches(
    parts: tuple[Part, ...], columns: Mapping[str, str], tally: Tally
) -> Iterator[pl.DataFrame]:
    row = 0
    for part in parts:
        for frame in part(tally):
            if "time" not in columns:
                order = pl.int_range(row, row + len(frame), eager=True).alias("time")
                frame = frame.with_columns(order)
            row += len(frame)
            yield frame


def _frames(log: Path, columns: Mapping[str, str], tally: Tally) -> Iterator[pl.DataFrame]:
    """Yield the frames of one file; the columns that it lacks are those of its folders."""
    named, own = folder_values(log), column_names(log)
    outside = {ours for ours, theirs in columns.items() if theirs in named and theirs not in own}
    inside = {ours: theirs for ours, theirs in columns.items() if ours not in outside}
    kind = file_kind(log)
    if kind == "json":
        frames = read_json_lines(log, inside, tally)
    elif kind == "parquet":
        frames = _parquet(log, inside)
    else:
        frames = read_delimited(log, inside, tally, separator="\t" if kind == "tsv" else ",")
    values = [pl.lit(named[columns[ours]], dtype=pl.String).alias(ours) for ours in outside]
    for frame in frames:
        yield frame.with_columns(values)


def _parquet(log: Path, columns: Mapping[str, str]) -> Iterator[pl.DataFrame]:
    chosen = [pl.col(theirs).alias(ours) for ours, theirs in columns.items()]
    try:
        yield from (
            pl.scan_parquet(log, hive_partitioning=False)
            .select(chosen)
            .collect_batches(maintain_order=True, chunk_size=BATCH_ROWS)
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{log.name} cannot be read as Parquet: {error}") from error


def _rows(logs: list[Path]) -> int | None:
    if file_kind(logs[0]) != "parquet":
        return None
    return sum(int(pl.scan_parquet(log).select(pl.len()).collect().item()) for log in logs)


def _content(
    table: Path | None, what: str, log_key: str, chosen: tuple[Column, ...] | None
) -> tuple[str, tuple[Column, ...]]:
    """Return the key column of a content table, and its features as chosen or by type."""
    if table is None:
        if chosen:
            raise ConfigError(f"{what} features need a table: name it with --{what}s")
        return "", ()
    names = column_names(table)
    key = next((name for name in (log_key, *USUAL_NAMES[what]) if name in names), None)
    if key is None:
        raise DataError(
            f"{table.name} has no column {log_key!r} with the {what}s' ids; "
            f"its columns are {', '.join(names)}"
        )
    if chosen is None:
        return key, infer_columns(table, key)
    unknown = [column.name for column in chosen if column.name not in names]
    if unknown:
        raise ConfigError(
            f"{table.name} has no column {unknown[0]!r}; its columns are {', '.join(names)}"
        )
    return key, chosen
