"""Add items to a bundle by their content, or remove items, without training and without a dataset.

add_items(bundle, pl.read_parquet("new_items.parquet"), "next.bundle")

A tower that reads ids beside content gets, for an item without an id, the mean of the trained id
vectors, weighted by how often each item was chosen: the item starts as popular as what users choose
on average. (With zeros or the plain mean it would look like the many items that are hardly ever
chosen, and would not be recommended; `benchmarks/cold_start.py` compares them.) Where histories are
read through ids (`history = "id"`), a new item can be recommended, but is skipped in histories.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import torch

from crossbatch.data.dataset.features import encode_table
from crossbatch.errors import DataError
from crossbatch.evaluation import encode_items
from crossbatch.files import check_target
from crossbatch.models import mean_id_vector
from crossbatch.progress import Progress, silent
from crossbatch.retrieval import IVFIndex
from crossbatch.serving.bundle import graph as graphs
from crossbatch.serving.bundle.filter_columns import as_column, keyed_rows
from crossbatch.serving.bundle.manifest import MANIFEST, REMEDY, BundleError
from crossbatch.serving.bundle.model_files import (
    ID_TABLE,
    USER_TOWER,
    HistoryEncoder,
    load_item_tower,
    load_own_items,
    map_tensors,
    sample_tables,
)
from crossbatch.serving.bundle.opening import Bundle, all_items
from crossbatch.serving.bundle.writing import (
    Contents,
    IndexPlan,
    Probe,
    random_histories,
    write_bundle,
)
from crossbatch.serving.user_features import Profiles, feature_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class NewItems:
    """Items to add to a bundle."""

    keys: list[str]
    titles: list[str]  # empty where there is none
    vectors: Tensor  # [n, d]
    history_vectors: Tensor  # [n, w], input of the user tower
    table: pl.DataFrame | None = None  # a row for each, which may have filter columns


def add_items(
    bundle: Bundle,
    items: pl.DataFrame,
    out: Path | str,
    *,
    key: str = "item",
    title: str = "title",
    overwrite: bool = False,
    progress: Progress = silent,
) -> Bundle:
    """Make a bundle that also has new items, encoded from their content.

    Args:
        bundle: What to add to.
        items: A row for each item: its key, its title, and columns named as the item features and
            the filter columns; values outside the vocabularies of training count as unknown.
        out: The bundle folder to create.
        key: Column of keys.
        title: Column of titles, if there is one.
        overwrite: Replace an existing bundle.
        progress: Called with (stage, done, total).

    Raises:
        DataError: If the items cannot be added.
    """
    check_target(Path(out), overwrite=overwrite, marker=MANIFEST)
    progress("items", 0, None)
    keys = _new_keys(bundle, items, key)
    titles = [""] * len(keys)
    if title in items:
        titles = items[title].cast(pl.String).fill_null("").to_list()
    with _forged_values_refused(bundle):
        new = NewItems(keys, titles, *encode_content(bundle, items), table=items)
        kept = np.arange(bundle.num_items + 1)
        return _write_changed(bundle, Path(out), kept, new, overwrite=overwrite, progress=progress)


def remove_items(
    bundle: Bundle,
    keys: Sequence[str],
    out: Path | str,
    *,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Bundle:
    """Make a bundle without some items: they are unknown from then on, in histories too.

    Args:
        bundle: What to remove from.
        keys: Of the items; all must be in the bundle.
        out: The bundle folder to create.
        overwrite: Replace an existing bundle.
        progress: Called with (stage, done, total).

    Raises:
        DataError: If a key is unknown, or nothing that was trained would be left.
    """
    check_target(Path(out), overwrite=overwrite, marker=MANIFEST)
    progress("items", 0, None)
    ids = bundle.item_ids(keys)
    if unknown := [name for name, item in zip(keys, ids, strict=True) if not item]:
        raise DataError(f"{len(unknown)} of the items are not in the bundle: {_first_few(unknown)}")
    kept = np.setdiff1d(np.arange(bundle.num_items + 1), ids)
    none = NewItems([], [], bundle.item_vectors[:0], bundle.history_vectors[:0])
    with _forged_values_refused(bundle):
        return _write_changed(bundle, Path(out), kept, none, overwrite=overwrite, progress=progress)


def encode_content(bundle: Bundle, items: pl.DataFrame) -> tuple[Tensor, Tensor]:
    """Vectors `[n, d]` of items from their content, and their history vectors `[n, w]`."""
    names = bundle.config.item_features
    if not names:
        raise DataError(
            "this bundle's item tower knows ids only, so no item can be encoded by its content: "
            "train with model.item_features"
        )
    given = [name for name in names if name in items.columns]
    if not given:
        raise DataError(
            f"the items have columns {', '.join(items.columns)}, but the model reads "
            f"{', '.join(names)}"
        )
    content, counts = items.select(given), _trained_counts(bundle)
    # Row 0 is padding. Weights with a row for each trained item are told by their number, which
    # must not be that of the new ones.
    extra = content.clear(n=int(len(items) + 1 == len(counts)))
    padded = pl.concat([content.clear(n=1), content, extra])
    features = encode_table(bundle.item_encoders, padded)
    tables, config = feature_tables(features), bundle.config
    if config.model or config.item_tower:
        state = bundle.whole_state()
        try:
            towers = load_own_items(config, len(padded) - 1, tables, state, counts)
        except ValueError as error:
            raise DataError(f"no item can be encoded: {error}") from None
    else:
        state = bundle.item_state()
        if ID_TABLE in state:
            mean = mean_id_vector(state[ID_TABLE], torch.from_numpy(np.array(bundle.item_counts)))
            state[ID_TABLE] = mean.expand(len(padded), -1)
        towers = load_item_tower(config, len(padded) - 1, tables, state)
    vectors = encode_items(towers, len(items))[1:]
    if bundle.reads_ids:
        return vectors, bundle.history_vectors[:0]
    return vectors, encode_items(HistoryEncoder(towers), len(items))[1:]


def _trained_counts(bundle: Bundle) -> np.ndarray:
    """How often each item of training was chosen; ones where some have been removed since."""
    trained = bundle.manifest["origin"]["dataset"]["counts"]["items"]
    kept = bundle.manifest["items"]["trained"] == trained
    return np.array(bundle.item_counts[: trained + 1]) if kept else np.ones(trained + 1)


@contextmanager
def _forged_values_refused(bundle: Bundle) -> Iterator[None]:
    """Turn exceptions that only forged documents can cause into `BundleError`."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise BundleError(f"{bundle.path} cannot be changed ({error!r}): {REMEDY}") from error


def _new_keys(bundle: Bundle, items: pl.DataFrame, column: str) -> list[str]:
    """The keys of new items; raise `DataError` if one is missing, repeated or in the bundle."""
    rows = keyed_rows(items, column, bundle.item_ids)
    keys = items[column].cast(pl.String)
    if not len(keys) or (keys == "").any():
        raise DataError(f"every item needs a key, but column {column!r} has an empty one, or none")
    if found := keys.filter(pl.Series(rows > 0)).to_list():
        raise DataError(
            f"{len(found)} of the items are in the bundle, to be removed first: {_first_few(found)}"
        )
    return keys.to_list()


def _write_changed(
    bundle: Bundle,
    out: Path,
    kept: np.ndarray,
    new: NewItems,
    *,
    overwrite: bool,
    progress: Progress,
) -> Bundle:
    """Write a bundle with rows `kept` of another, padding included, and new items after them."""
    index = bundle.manifest["index"]
    cells = bundle.index if isinstance(bundle.index, IVFIndex) else None
    formats = {"pt2": graphs.PT2, "onnx": graphs.ONNX}
    return write_bundle(
        out,
        _contents(bundle, kept, new),
        _probe(bundle, kept),
        IndexPlan(index["asked"], index["target"], cells),
        graph_formats=[name for name, file in formats.items() if file in bundle.manifest["files"]],
        overwrite=overwrite,
        progress=progress,
    )


def _contents(bundle: Bundle, kept: np.ndarray, new: NewItems) -> Contents:
    trained = kept[kept <= bundle.manifest["items"]["trained"]]
    if len(trained) < 2:
        raise DataError("no trained item would be left: a bundle needs at least one")
    old_keys, old_titles = all_items(bundle.catalogue)
    state = bundle.item_state()
    # Other item towers keep their weights as they were trained: which of them belong to items,
    # they alone know.
    other = bundle.config.model or bundle.config.item_tower
    if ID_TABLE in state and not other:
        state[ID_TABLE] = state[ID_TABLE][torch.from_numpy(trained)]
    origin, removed = bundle.manifest["origin"], bundle.num_items + 1 - len(kept)
    change = {"from": bundle.version, "added": len(new.keys), "removed": removed}
    rows, history_vectors = torch.from_numpy(kept), None
    if bundle.stores_history:
        readable = rows[rows < len(bundle.history_vectors)]
        history_vectors = torch.cat([bundle.history_vectors[readable], new.history_vectors])
    return Contents(
        name=bundle.name,
        config=bundle.config,
        history_length=bundle.history_length,
        metrics=bundle.metrics,
        keys=[old_keys[row] for row in kept] + new.keys,
        titles=[old_titles[row] for row in kept] + new.titles,
        counts=np.pad(np.asarray(bundle.item_counts)[kept], (0, len(new.keys))),
        vectors=torch.cat([bundle.item_vectors[rows], new.vectors]),
        history_vectors=history_vectors,
        item_state=state,
        user_state=map_tensors(bundle.path / USER_TOWER),
        trained=len(trained) - 1,
        features=bundle.path / "features",
        origin=origin | {"changes": [*origin.get("changes", []), change]},
        program=bundle.program,
        reads_ids=bundle.reads_ids,
        filters=_filters(bundle, kept, new),
    )


def _filters(bundle: Bundle, kept: np.ndarray, new: NewItems) -> pl.DataFrame | None:
    """The filter columns of rows `kept` and of the new items; missing where these have none."""
    if bundle.filters is None:
        return None
    old = bundle.filters.frame[kept[1:] - 1]
    if new.table is None:
        return old
    given = [
        as_column(new.table[name], kind)
        for name, kind in bundle.filters.kinds.items()
        if name in new.table
    ]
    added = pl.DataFrame(given) if given else pl.DataFrame({"": new.keys})
    return pl.concat([old, added], how="diagonal").select(old.columns)


def _probe(bundle: Bundle, kept: np.ndarray) -> Probe:
    """Random users of the old bundle, their histories in the ids of the new one."""
    readable = kept[(kept > 0) & (kept < len(bundle.history_vectors))]
    history = random_histories(bundle, readable)
    rows = torch.arange(len(history))
    profiles = None
    if bundle.request_features:
        profiles = Profiles(sample_tables(bundle.request_features, len(history)), rows)
    moved = torch.zeros(bundle.num_items + 1, dtype=torch.long)
    moved[torch.from_numpy(kept)] = torch.arange(len(kept))
    return Probe(moved[history], profiles, bundle.interests(history, profiles))


def _first_few(keys: Sequence[str]) -> str:
    shown = ", ".join(repr(key) for key in keys[:3])
    return f"{shown}, ..." if len(keys) > 3 else shown
