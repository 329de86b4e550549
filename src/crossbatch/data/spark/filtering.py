"""Minimum counts on Spark: the rounds of `crossbatch.data.prepare.filtering`, as joins."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.prepare.filtering import Frequent

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.spark.reading import SparkLog


class FrequentKeys(NamedTuple):
    """What the filters keep.

    Attributes:
        items: Keys in order of their first appearance in the log.
        users: The same for users.
        frequent: Counts and account; its codes are places in `items` and `users`.
    """

    items: pl.Series
    users: pl.Series
    frequent: Frequent


def keep_frequent(log: SparkLog, folder: Path, options: PrepareOptions) -> FrequentKeys:
    """Apply the minimum counts; every round leaves its keys as Parquet files in `folder`.

    What is kept only shrinks, so a round joins the whole log with the last round's keys: plans do
    not grow with the number of rounds.
    """
    items, users = (_counted(log.frame, name, folder / f"{name}-0") for name in ("item", "user"))
    firsts = {"item": items, "user": users}
    rounds = 0
    while True:
        rounds += 1
        known = log.frame if rounds == 1 else _with(_with(log.frame, items), users)
        counted = items if rounds == 1 else _counted(known, "item", folder / f"item-{rounds}")
        kept_items = counted.filter(counted["count"] >= options.min_item_count)
        counted = _counted(_with(known, kept_items), "user", folder / f"user-{rounds}")
        kept_users = counted.filter(counted["count"] >= options.min_user_count)
        last = not options.core or _settled((items, kept_items), (users, kept_users))
        items, users = kept_items, kept_users
        if last:
            break
    with_kept_items = _with(log.frame, items).count()
    item_keys, item_counts = _by_appearance(items, firsts["item"], folder / "items")
    user_keys, user_counts = _by_appearance(users, firsts["user"], folder / "users")
    frequent = Frequent(
        users=np.ones(len(user_keys), dtype=bool),
        items=np.ones(len(item_keys), dtype=bool),
        item_counts=item_counts,
        user_counts=user_counts,
        dropped_by_item=log.rows - with_kept_items,
        dropped_by_user=with_kept_items - int(user_counts.sum()),
        rounds=rounds,
    )
    return FrequentKeys(item_keys, user_keys, frequent)


def _settled(*before_and_after: tuple[DataFrame, DataFrame]) -> bool:
    return all(before.count() == after.count() for before, after in before_and_after)


def _counted(log: DataFrame, name: str, folder: Path) -> DataFrame:
    """Return the interactions of each key and the first of them, from a file of their own."""
    from pyspark.sql import functions as f

    counted = log.groupBy(name).agg(f.count("*").alias("count"), f.min("row").alias("first"))
    counted.write.parquet(f"file://{folder}")
    return log.sparkSession.read.schema(counted.schema).parquet(f"file://{folder}")


def _with(log: DataFrame, keys: DataFrame) -> DataFrame:
    """Return the interactions of the given users or items."""
    return log.join(keys.select(keys.columns[0]), keys.columns[0], "left_semi")


def _by_appearance(
    kept: DataFrame, firsts: DataFrame, folder: Path
) -> tuple[pl.Series, np.ndarray]:
    """Return kept keys in order of their first row in the whole log, and their last counts."""
    name = kept.columns[0]
    joined = kept.select(name, "count").join(firsts.select(name, "first"), name)
    joined.write.parquet(f"file://{folder}")
    files = sorted(folder.glob("*.parquet"))
    frame = pl.scan_parquet(files).sort("first").select(name, "count").collect()
    return frame[name], frame["count"].to_numpy()
