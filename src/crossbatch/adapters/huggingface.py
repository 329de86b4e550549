"""Hugging Face datasets: read a log from one, convert a prepared dataset to one.

    write_log(load_dataset("…", split="train"), "raw", user="user_id", item="asin", time="ts")
    # crossbatch prepare raw --out shop
    to_dataset_dict(open_dataset("shop"))["train"]

Parquet files, which is what the hub stores, need no adapter: `crossbatch prepare` reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from crossbatch.adapters import needs
from crossbatch.errors import ConfigError
from crossbatch.files import atomic_folder

with needs("hf"):
    import pyarrow as pa
    from datasets import Dataset as Table  # type: ignore[import-untyped,unused-ignore]
    from datasets import DatasetDict

if TYPE_CHECKING:
    from crossbatch.data import Dataset

LOG = "interactions.parquet"


def write_log(
    log: Table,
    out: Path | str,
    *,
    user: str = "user",
    item: str = "item",
    time: str = "timestamp",
    items: Table | None = None,
    users: Table | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a log as a folder that `crossbatch prepare` and `open_source` read.

    Args:
        log: One row per interaction; its other columns, such as `rating`, are kept.
        out: The folder to create.
        user: Column of user ids.
        item: Column of item ids.
        time: Column of times.
        items: Content of the items, keyed by a column of the same name as in the log.
        users: Content of the users, likewise.
        overwrite: Whether to replace an earlier log in `out`.

    Returns:
        The folder.
    """
    columns = {user: "user", item: "item", time: "timestamp"}
    tables = {"interactions": (log, columns), "items": (items, {item: "item"})}
    tables["users"] = (users, {user: "user"})
    for name, (table, keys) in tables.items():
        missing = [key for key in keys if table is not None and key not in table.column_names]
        if missing:
            raise ConfigError(
                f"{name} has no column {missing[0]!r}; its columns are "
                f"{', '.join(table.column_names if table is not None else ())}"
            )
    with atomic_folder(Path(out), overwrite=overwrite, marker=LOG) as folder:
        for name, (table, keys) in tables.items():
            if table is not None:
                _renamed(table, keys).to_parquet(folder / f"{name}.parquet")
    return Path(out)


def to_dataset_dict(dataset: Dataset) -> DatasetDict:
    """Convert a prepared dataset with its splits.

    Returns:
        `train` with columns `user` and `items` (a user's whole training sequence, oldest first);
        `valid` and `test` with `user`, `history` and `targets`. Items are ids; `item_table` has
        their keys and titles.
    """
    offsets, items = dataset.train_sequences()
    users = np.array(dataset.train_users)
    parts = {
        "train": {
            "user": pa.array(dataset.user_keys(users)),
            "items": pa.LargeListArray.from_arrays(offsets, items),
        }
    }
    for split in ("valid", "test"):
        parts[split] = _held_out(dataset, split)
    return DatasetDict({name: Table(pa.table(columns)) for name, columns in parts.items()})


def item_table(dataset: Dataset) -> Table:
    """Return the items: `item_id`, `item` (the source's key), `title`, `count` in training."""
    ids = np.arange(1, dataset.num_items + 1)
    return Table(
        pa.table(
            {
                "item_id": ids,
                "item": pa.array(dataset.item_keys(ids)),
                "title": pa.array(dataset.item_titles(ids)),
                "count": np.array(dataset.item_counts[1:]),
            }
        )
    )


def _held_out(dataset: Dataset, split: str) -> dict[str, pa.Array]:
    users: list[str] = []
    histories: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    longest = int(np.diff(dataset.offsets).max())
    for batch in dataset.eval_batches(split, history_length=longest):
        users += dataset.user_keys(batch.user_ids.tolist())
        histories += [row[row > 0] for row in batch.history.numpy()]
        targets += [np.asarray(row) for row in batch.targets]
    return {
        "user": pa.array(users, pa.string()),
        "history": pa.array(histories, pa.large_list(pa.int32())),
        "targets": pa.array(targets, pa.large_list(pa.int32())),
    }


def _renamed(table: Table, names: dict[str, str]) -> Table:
    """Rename columns to the names that `crossbatch prepare` expects."""
    changed = {theirs: ours for theirs, ours in names.items() if theirs != ours}
    taken = [ours for ours in changed.values() if ours in table.column_names]
    return table.remove_columns(taken).rename_columns(changed)
