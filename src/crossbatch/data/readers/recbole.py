"""RecBole's atomic files: `X.inter`, `X.item`, `X.user`, tab-separated, header `name:type`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.data.readers.source import Column, ReadOptions, Source, Tally
from crossbatch.data.readers.text_tables import (
    read_delimited,
    read_whole,
    require_names,
    split_header,
)
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl


KINDS = {
    "token": "categorical",
    "token_seq": "multi_valued",
    "float": "numeric",
    "float_seq": "dense",
}
TITLES = ("title", "movie_title", "item_name", "name")


def recognises(path: Path) -> bool:
    """Return whether a path is an `.inter` file or a folder with exactly one."""
    return _log(path) is not None


def open_source(path: Path, options: ReadOptions) -> Source:
    """Return atomic files as a source."""
    log = _log(path)
    if log is None:
        raise DataError(f"{path} must be an .inter file or a folder with exactly one")
    fields = _fields(log)
    user, item = options.user or "user_id", options.item or "item_id"
    columns = {"user": _named(fields, user, log), "item": _named(fields, item, log)}
    columns["time"] = _named(fields, options.time or "timestamp", log)
    if "rating" in fields:
        columns["rating"] = f"rating:{fields['rating']}"
    items, users = log.with_suffix(".item"), log.with_suffix(".user")
    content = tuple(file for file in (items, users) if file.is_file())
    item_columns, title = _columns(items, item)
    return Source(
        format="recbole",
        files=(log, *content),
        content_files=content,
        batches=lambda tally: read_delimited(log, columns, tally, separator="\t"),
        time_unit=options.time_unit or "auto",
        item_table=(lambda _keys, tally: _table(items, item, tally)) if items.is_file() else None,
        user_table=(lambda _keys, tally: _table(users, user, tally)) if users.is_file() else None,
        item_columns=item_columns,
        user_columns=_columns(users, user)[0],
        title=title,
    )


def _log(path: Path) -> Path | None:
    if path.is_dir():
        # X.train.inter and the like are parts of a split that RecBole made
        logs = [file for file in path.glob("*.inter") if file.name.count(".") == 1]
        return logs[0] if len(logs) == 1 else None
    return path if path.suffix == ".inter" else None


def _fields(path: Path) -> dict[str, str]:
    """Return the types of a file's columns by name."""
    pairs = [field.split(":", 1) for field in split_header(path, "\t")]
    broken = [pair[0] for pair in pairs if len(pair) < 2 or pair[1] not in KINDS]
    if broken:
        raise DataError(
            f"{path.name}: column {broken[0]!r} needs a type, name:{{{','.join(KINDS)}}}"
        )
    return {pair[0]: pair[1] for pair in pairs}


def _named(fields: dict[str, str], name: str, path: Path) -> str:
    require_names(path, [name], fields, "column")
    return f"{name}:{fields[name]}"


def _columns(path: Path, key: str) -> tuple[tuple[Column, ...], str | None]:
    if not path.is_file():
        return (), None
    fields = _fields(path)
    title = next((name for name in TITLES if name in fields), None)
    columns = tuple(
        Column(name, "text" if name == title else KINDS[kind], separator=" ")
        for name, kind in fields.items()
        if name != key
    )
    return columns, title


def _table(path: Path, key: str, tally: Tally) -> pl.DataFrame:
    fields = _fields(path)
    _named(fields, key, path)
    columns = {("key" if name == key else name): f"{name}:{kind}" for name, kind in fields.items()}
    before = tally.lines
    frame = read_whole(path, columns, tally, separator="\t")
    tally.lines = before  # lines of content are no interactions
    return frame
