"""A log in memory as a source that can be prepared: frames become Parquet files, which are read.

source, about = frame_source(log, Path("raw"), {"user": "visitor"}, items=products)

narwhals reads the frames of pandas, polars, pyarrow and other libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from crossbatch.data import Column, ReadOptions, Source, open_source
from crossbatch.data.readers.table import USUAL_NAMES
from crossbatch.errors import ConfigError, DataError, reason_of
from crossbatch.results import LIBRARIES

READING = frozenset(field.name for field in fields(ReadOptions))


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """What answers need to know of the frame of a log.

    Attributes:
        library: Its library, one of `results.LIBRARIES`.
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


def is_frame(value: object) -> bool:
    """Whether narwhals knows the object as a data frame."""
    import narwhals as nw

    return isinstance(nw.from_native(value, pass_through=True), nw.DataFrame | nw.LazyFrame)


def library_of(frame: Any) -> str:
    """The library that results for the owner of a frame should be in, one of `LIBRARIES`."""
    import narwhals as nw

    name = nw.from_native(frame).implementation.value
    return name if name in LIBRARIES else "polars"


def column_types(frame: Any) -> dict[str, bool]:
    """The columns of a frame, and whether each holds integers."""
    import narwhals as nw

    schema = nw.from_native(frame).collect_schema()
    return {name: kind.is_integer() for name, kind in schema.items()}


def write_frame(frame: Any, path: Path, columns: Sequence[str] | None = None) -> Path:
    """Write a frame, or some of its columns, as Parquet.

    Raises:
        DataError: If a column holds values that no Parquet file could.
    """
    import narwhals as nw

    chosen = nw.from_native(frame)
    if columns is not None:
        chosen = chosen.select(*columns)
    try:
        table = chosen.collect("polars") if isinstance(chosen, nw.LazyFrame) else chosen
        polars = table.to_polars()
        dictionary = pl.selectors.categorical() | pl.selectors.enum()
        polars.with_columns(dictionary.cast(pl.String)).write_parquet(path)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"reading a {library_of(frame)} frame needs {error.name}: pip install {error.name}"
        ) from None
    except Exception as error:  # each library has exceptions of its own for mixed types
        reason = reason_of(error)
        raise DataError(
            f"the frame's columns {', '.join(chosen.collect_schema().names())} cannot be read "
            f"({reason}): give each column one type"
        ) from error
    return path


def matrix_frame(matrix: Any) -> pl.DataFrame:
    """The entries of a NumPy or SciPy matrix of users by items that are not 0, as a log.

    Ids are numbers of rows and columns, the value is the rating. There is no order, so all times
    are equal.
    """
    if hasattr(matrix, "tocoo"):
        entries = matrix.tocoo()
        users, items, values = entries.row, entries.col, entries.data
        users, items, values = (part[entries.data != 0] for part in (users, items, values))
    else:
        dense = np.asarray(matrix)
        if dense.ndim != 2 or dense.dtype == object:
            raise DataError(
                f"a log must be a data frame or a matrix of users by items, got "
                f"{type(matrix).__name__} of shape {list(dense.shape)}"
            )
        users, items = np.nonzero(dense)
        values = dense[users, items]
    columns = {"user": users, "item": items, "time": np.zeros(len(users)), "rating": values}
    return pl.DataFrame({name: np.asarray(column) for name, column in columns.items()}).cast(
        {"user": pl.Int64, "item": pl.Int64, "rating": pl.Float64}
    )
