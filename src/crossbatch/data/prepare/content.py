"""Keys, titles and features of items and users: what a source's content tables say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from crossbatch.data.dataset.features import extend_features, write_features
from crossbatch.data.dataset.string_table import write_strings
from crossbatch.data.dataset.vectors import open_vectors

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.data.dataset.memory_mapped import Dataset
    from crossbatch.data.prepare.local_engine import SortedLog
    from crossbatch.data.readers.source import Source, Table, Tally
    from crossbatch.progress import Progress


def write_content(
    folder: Path,
    source: Source,
    log: SortedLog,
    tally: Tally,
    progress: Progress,
    base: Dataset | None = None,
) -> dict[str, Any]:
    """Write keys, titles and features of items (row 0 = padding) and users.

    Of what the source does not have of the items and users of `base`, the dataset that it is added
    to, the dataset's own content stays.

    Returns:
        The features of each for the manifest.
    """
    progress("content", 0, None)
    padded = pl.concat([pl.Series("key", [None], dtype=pl.String), log.item_keys.alias("key")])
    write_strings(folder, "item_keys", padded)
    write_strings(folder, "user_keys", log.user_keys)
    items, new_items = _table(padded, source.item_table, "items", tally)
    users, new_users = _table(log.user_keys, source.user_table, "users", tally)
    titles = None
    if source.title is not None and source.title in items.columns:
        titles = items[source.title].cast(pl.String).fill_null("")
    if base is not None:
        titles = _newer(base, titles, new_items)
    if titles is not None:
        write_strings(folder, "item_titles", titles)
    vectors = [open_vectors(name, path) for name, path in source.item_vectors.items()]
    new, note = folder / "features", tally.notes.append
    of_items: dict[str, Any] = {"padding": 1, "vectors": vectors}
    if base is None:
        return {
            "items": write_features(new / "items", items, source.item_columns, note, **of_items),
            "users": write_features(new / "users", users, source.user_columns, note),
        }
    old = base.path / "features"
    return {
        "items": extend_features(new / "items", old / "items", items, new_items, note, **of_items),
        "users": extend_features(new / "users", old / "users", users, new_users, note),
    }


def _newer(base: Dataset, titles: pl.Series | None, given: np.ndarray) -> pl.Series | None:
    """The titles of a dataset, replaced where new ones are given `[R]`; none if it has none."""
    if base.title_table is None:
        return None
    known = pl.Series(base.title_table.tolist(), dtype=pl.String)
    known = known.extend_constant("", len(given) - len(known))
    return known if titles is None else titles.zip_with(pl.Series(given), known)


def _table(
    keys: pl.Series, read: Table | None, what: str, tally: Tally
) -> tuple[pl.DataFrame, np.ndarray]:
    """One row of content for each key, null where there is none, and whether it has one.

    Of several rows of a key it is the first.  Shapes `[len(keys)]`.
    """
    frame = pl.DataFrame({"key": keys})
    if read is None:
        return frame, np.zeros(len(keys), dtype=bool)
    table = read(keys.drop_nulls(), tally)
    tally.lines += len(table)
    tally.check()
    table = table.with_columns(pl.col("key").cast(pl.String))
    table = table.filter(pl.col("key").is_in(keys.implode()))
    unique = table.unique("key", keep="first", maintain_order=True)
    if len(unique) < len(table):
        tally.notes.append(f"{len(table) - len(unique):,} repeated rows of {what} were ignored")
    missing = keys.null_count() + len(unique)
    if missing < len(keys):
        tally.notes.append(f"{len(keys) - missing:,} {what} have no content")
    given = keys.is_in(unique["key"].implode()).fill_null(value=False).to_numpy()
    return frame.join(unique, on="key", how="left", maintain_order="left"), given
