"""Data frames of any library in, frames of the caller's library out.

    write_frame(frame, Path("log.parquet"), ["user", "item", "time"])   # pandas, polars, pyarrow, …
    to_native(table, "pandas")

narwhals reads what is not a polars frame already. A frame goes through a Parquet file, so that the
readers of files are the only readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from crossbatch.errors import ConfigError, DataError, check_choice, reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIBRARIES = ("polars", "pandas", "pyarrow")


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


def to_native(table: pl.DataFrame, library: str) -> Any:
    """A polars frame as one of another library."""
    check_choice("library", library, LIBRARIES)
    try:
        if library == "pandas":
            return table.to_pandas()
        return table.to_arrow() if library == "pyarrow" else table
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a {library} frame needs {error.name}: pip install {error.name}, or ask for polars"
        ) from None


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
