"""The filter columns of a bundle: made at export, changed later without a new export.

set_columns(bundle, pl.read_parquet("stock.parquet"), "next.bundle")
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from crossbatch.data.dataset.features import read_encoders
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import atomic_folder, listed_file
from crossbatch.progress import Progress, silent
from crossbatch.serving.bundle.manifest import MANIFEST, BundleError, write_manifest
from crossbatch.serving.bundle.opening import FILTERS, Bundle, open_bundle
from crossbatch.serving.filters import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from crossbatch.data import Dataset

SEPARATOR = "|"  # of a list that is given as a string
ID = ":id"  # the column of item ids; no declared column can have such a name
WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def declared_columns(
    dataset: Dataset, declarations: Sequence[str], table: pl.DataFrame | None, key: str
) -> pl.DataFrame | None:
    """The columns that an export declares, a row for each of the dataset's items; None for none.

    Args:
        dataset: Its categorical and multi-valued item features are columns too.
        declarations: `NAME` or `NAME:KIND`.
        table: A row for each item with further columns; it comes first.
        key: Its column of item keys.
    """
    wanted = _split(declarations)
    if not wanted:
        return None
    given = {name: kind for name, kind in wanted.items() if table is not None and name in table}
    columns = [_column(dataset, name, kind) for name, kind in wanted.items() if name not in given]
    if table is not None and given:
        found = columns_of(table, key, given, dataset.num_items, dataset.item_ids)
        columns += found.get_columns()
    return pl.DataFrame(columns).select(list(wanted))


def _split(declarations: Sequence[str]) -> dict[str, str | None]:
    wanted = dict(map(split_declaration, declarations))
    if len(wanted) < len(declarations):
        raise ConfigError("--filter-column names a column twice")
    return wanted


def _column(dataset: Dataset, name: str, kind: str | None) -> pl.Series:
    """A feature of the items as text or lists; a column of a given kind without values."""
    feature = dataset.item_features.get(name)
    if feature is None and kind is not None:
        return pl.Series(name, [None] * dataset.num_items, dtype=KINDS[kind])
    vocabulary = None
    if feature is not None:
        vocabulary = read_encoders(dataset.path / "features/items")[name].vocabulary
    if feature is None or vocabulary is None:
        reason = "is no item feature of the dataset"
        if feature is not None:
            reason = f"is a {feature.kind} feature, which is stored for the model only"
        raise ConfigError(
            f"--filter-column {name!r} {reason}: pass --items FILE with such a column, or "
            f"{name}:KIND to fill it later with `crossbatch items set`"
        )
    words = pl.concat([pl.Series([None], dtype=pl.String), vocabulary])
    values = words.gather(np.asarray(feature.values, dtype=np.int64))
    if feature.offsets is None:
        return values[1:].alias(name)
    rows = np.repeat(np.arange(dataset.num_items + 1), np.diff(feature.offsets))
    lists = pl.DataFrame({"row": rows, "value": values}).group_by("row").agg("value")
    every = pl.DataFrame({"row": np.arange(1, dataset.num_items + 1)})
    return every.join(lists, on="row", how="left", maintain_order="left")["value"].alias(name)


def set_columns(
    bundle: Bundle,
    changes: pl.DataFrame,
    out: Path | str,
    *,
    key: str = "item",
    declare: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress = silent,
) -> Bundle:
    """Make a bundle with other values in its filter columns; all else is the same.

    Args:
        bundle: What to change.
        changes: A row for each item whose values change: its key, and filter columns. A missing
            value takes the item's value away. Items that the bundle does not have are left out.
        out: The bundle folder to create; with `overwrite` it may be the bundle itself. Files that
            stay the same are hard links where the file system has them.
        key: Column of keys.
        declare: Columns to add, `NAME` or `NAME:KIND`.
        overwrite: Replace an existing bundle.
        progress: Called with (stage, done, total).

    Raises:
        DataError: If the changes cannot be made.
    """
    progress("items", 0, None)
    frame, count = changed(bundle, changes, key, declare)
    names = [name for name in changes.columns if name != key]
    origin = bundle.manifest["origin"]
    change = {"from": bundle.version, "set": names, "items": count}
    facts = {name: value for name, value in bundle.manifest.items() if name not in OWN_FACTS}
    facts["origin"] = origin | {"changes": [*origin.get("changes", []), change]}
    with atomic_folder(Path(out), overwrite=overwrite, marker=MANIFEST) as folder:
        progress("writing", 0, None)
        known = {name: entry for name, entry in bundle.manifest["files"].items() if name != FILTERS}
        for name in known:
            source = listed_file(bundle.path, name)
            if source is None:
                raise BundleError(f"{bundle.path} lists {name!r}, which is no file of it")
            _link(source, folder / name)
        frame.write_parquet(folder / FILTERS)
        write_manifest(folder, facts, known=known)
    return open_bundle(out, verify=False)


OWN_FACTS = ("checksum", "kind", "format_version", "files")  # of a manifest, written anew


def changed(
    bundle: Bundle, changes: pl.DataFrame, key: str, declare: Sequence[str]
) -> tuple[pl.DataFrame, int]:
    """The filter columns with the changes, and how many items they concern."""
    rows = keyed_rows(changes, key, bundle.item_ids)
    before = pl.DataFrame() if bundle.filters is None else bundle.filters.frame
    kinds: dict[str, str | None] = {} if bundle.filters is None else dict(bundle.filters.kinds)
    new = _split(declare)
    if twice := [name for name in new if name in kinds]:
        raise ConfigError(f"--filter-column {twice[0]!r} is a column of the bundle already")
    kinds |= new
    given = [name for name in changes.columns if name != key]
    if unknown := [name for name in given if name not in kinds]:
        raise DataError(
            f"{unknown[0]!r} is no filter column of the bundle, which has "
            f"{', '.join(kinds) or 'none'}: leave it out, or declare it with --filter-column"
        )
    if not given:
        raise DataError(f"the items have no column but {key!r}: there is nothing to set")
    found = rows > 0
    if not found.any():
        raise DataError(
            f"none of the {len(rows):,} items of column {key!r} is in the bundle: name the column "
            "of item ids with --key"
        )
    values = _typed(changes, {name: kinds[name] for name in given}, rows)
    columns = [_ids(bundle.num_items), *before.get_columns()]
    for name, kind in new.items():
        if kind is None and name not in given:
            raise ConfigError(
                f"--filter-column {name!r} has no values: declare its kind as {name}:KIND"
            )
        dtype = KINDS[kind] if kind else values[name].dtype
        columns.append(pl.Series(name, [None] * bundle.num_items, dtype=dtype))
    frame = pl.DataFrame(columns).update(values, on=ID, include_nulls=True)
    return frame.drop(ID), int(found.sum())


def _link(source: Path, target: Path) -> None:
    """The same file under another name; a copy where links are impossible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def split_declaration(declaration: str) -> tuple[str, str | None]:
    """Name and kind of `NAME` or `NAME:KIND`."""
    name, separator, kind = declaration.partition(":")
    if not name or (separator and kind not in KINDS):
        raise ConfigError(
            f"--filter-column must be NAME or NAME:KIND with a kind of {', '.join(KINDS)}, "
            f"got {declaration!r}"
        )
    return name, kind or None


def as_column(series: pl.Series, kind: str | None = None) -> pl.Series:
    """A column of a table as one of the types of `KINDS`: the kind given, or the nearest one.

    Raises:
        DataError: If there are values that the kind cannot hold.
    """
    kind = kind or _nearest_kind(series)
    given = series
    if kind == "list" and not isinstance(series.dtype, pl.List):
        series = series.cast(pl.String, strict=False).str.split(SEPARATOR)
        series = series.list.eval(pl.element().str.strip_chars()).list.eval(
            pl.element().filter(pl.element() != "")
        )
    if kind == "boolean" and series.dtype != pl.Boolean:
        words = series.cast(pl.String, strict=False).str.to_lowercase()
        series = words.replace_strict(WORDS, default=None, return_dtype=pl.Boolean)
    if kind == "time" and series.dtype == pl.String:
        series = series.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
    if kind == "time" and isinstance(series.dtype, pl.Datetime) and series.dtype.time_zone is None:
        series = series.dt.replace_time_zone("UTC")
    if kind in ("integer", "number") and series.dtype.is_float():
        series = series.fill_nan(None)
        if kind == "integer":
            series = series.set(series != series.round(), None)
    try:
        cast = series.cast(KINDS[kind], strict=False)
    except pl.exceptions.PolarsError:
        cast = pl.Series(series.name, [None] * len(series), dtype=KINDS[kind])
    if kind == "number":
        cast = cast.set(cast.is_infinite().fill_null(value=False), None)
    there = given.is_not_null()
    if given.dtype.is_float():
        there &= given.is_not_nan().fill_null(value=True)
    if (lost := given.filter(there & cast.is_null())).len():
        raise DataError(
            f"column {given.name!r} has {len(lost):,} values that are no {kind}, such as "
            f"{lost[0]!r}: mend them, or declare another kind as {given.name}:KIND"
        )
    return cast


def _nearest_kind(series: pl.Series) -> str:
    dtype = series.dtype
    if dtype == pl.Boolean:
        return "boolean"
    if dtype.is_integer():
        return "integer"
    if dtype.is_float() or isinstance(dtype, pl.Decimal):
        return "number"
    if isinstance(dtype, pl.Date | pl.Datetime):
        return "time"
    if isinstance(dtype, pl.List):
        return "list"
    return "text"


def keyed_rows(table: pl.DataFrame, key: str, ids: Callable[[Sequence[str]], np.ndarray]) -> Any:
    """Item id of each row of a table by its column of keys, 0 where unknown.  `[R]`, int64.

    Raises:
        DataError: If there is no such column, or keys are missing or repeated.
    """
    if key not in table.columns:
        raise DataError(
            f"the items need a column {key!r} with their keys; they have {', '.join(table.columns)}"
        )
    keys = table[key].cast(pl.String)
    if keys.null_count():
        raise DataError(
            f"every item needs a key, column {key!r} has {keys.null_count():,} rows without"
        )
    if repeated := keys.filter(keys.is_duplicated()).unique(maintain_order=True).to_list():
        raise DataError(f"{len(repeated):,} items have several rows, such as {repeated[0]!r}")
    return ids(keys.to_list())


def columns_of(
    table: pl.DataFrame, key: str, wanted: Mapping[str, str | None], num_items: int, ids: Any
) -> pl.DataFrame:
    """Columns of a table, a row for each of the items 1 … N; missing where the table has none."""
    values = _typed(table, wanted, keyed_rows(table, key, ids))
    frame = _ids(num_items).to_frame()
    return frame.join(values, on=ID, how="left", maintain_order="left").select(list(wanted))


def _typed(table: pl.DataFrame, wanted: Mapping[str, str | None], ids: np.ndarray) -> pl.DataFrame:
    """The wanted columns of a table, each as one of the types of `KINDS`, and the items' ids."""
    columns = [as_column(table[name], kind).alias(name) for name, kind in wanted.items()]
    return pl.DataFrame([pl.Series(ID, ids), *columns])


def _ids(num_items: int) -> pl.Series:
    return pl.Series(ID, np.arange(1, num_items + 1))
