"""A log in memory as a source that can be prepared: frames become Parquet files, which are read.

source, about = frame_source(log, Path("raw"), {"user": "visitor"}, items=products)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from crossbatch.data import Column, ReadOptions, open_source
from crossbatch.data.readers.table import USUAL_NAMES
from crossbatch.errors import ConfigError
from crossbatch.frames import column_types, is_frame, library_of, matrix_frame, write_frame

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crossbatch.data import Source

READING = frozenset(field.name for field in fields(ReadOptions))


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """What answers need to know of the frame of a log.

    Attributes:
        library: Its library, one of `frames.LIBRARIES`.
        number_users: Whether its user ids are whole numbers.
        number_items: Whether its item ids are.
    """

    library: str
    number_users: bool
    number_items: bool


def frame_source(
    log: Any,
    folder: Path,
    options: Mapping[str, Any],
    *,
    items: Any = None,
    users: Any = None,
) -> tuple[Source, FrameFacts]:
    """Write a log and its content to a folder, and open them as a source.

    Args:
        log: A data frame, or a NumPy or SciPy matrix of users by items.
        folder: An empty folder, which must stay until the source is prepared.
        options: Those of `ReadOptions` by name; features and context as `{name: kind}`.
        items: A frame of item content.
        users: A frame of user content.

    Raises:
        ConfigError: If a column is missing.
        DataError: If a frame cannot be written.
    """
    library = library_of(log) if is_frame(log) else "polars"
    log = log if is_frame(log) else matrix_frame(log)
    columns, reading = column_types(log), dict(options)
    for name in USUAL_NAMES:
        reading[name] = _column(name, reading.get(name), columns)
    facts = FrameFacts(library, columns[reading["user"]], columns[reading["item"]])
    wanted = {"rating", *_words(reading)}
    path = write_frame(log, folder / "log.parquet", [name for name in columns if name in wanted])
    for name, frame in (("items", items), ("users", users)):
        if frame is not None and not is_frame(frame):
            raise ConfigError(f"{name} must be a data frame, got {type(frame).__name__}")
        reading[name] = None if frame is None else write_frame(frame, folder / f"{name}.parquet")
    for name in ("item_columns", "user_columns", "context"):
        kinds = reading.get(name)
        if kinds is not None:
            reading[name] = tuple(Column(column, kind) for column, kind in kinds.items())
    return open_source(path, "table", ReadOptions(**reading)), facts


def _column(name: str, given: str | None, columns: Mapping[str, bool]) -> str:
    """The column of users, items or times: as given, or by a usual name."""
    if name == "time" and given == "none":
        return given
    found = [given] if given else [usual for usual in USUAL_NAMES[name] if usual in columns]
    if found and found[0] in columns:
        return found[0]
    what = f"no column {given!r}" if given else f"no column of {name}s with a usual name"
    remedy = ', or pass time="none" if the order of the rows is the time' if name == "time" else ""
    raise ConfigError(
        f"the log has {what}: name it, as Recommender({name}=…){remedy}; its columns are "
        f"{', '.join(columns)}"
    )


def _words(value: Any) -> set[str]:
    """All strings in nested options, which may be names of columns."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return set().union(*map(_words, value)) if isinstance(value, list | tuple) else set()
