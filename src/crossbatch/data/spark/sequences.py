"""Sequences on Spark: numbers joined to the log, one global sort, and its files in order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from crossbatch.data.prepare.sequences import mix

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame

    from crossbatch.data.prepare.sequences import Numbering
    from crossbatch.data.spark.filtering import FrequentKeys

TIE_COLUMNS = {"shuffle": "mixed", "stable": "row", "item": "item"}
BATCH_ROWS = 1 << 20
SIGN = np.uint64(1 << 63)


def numbered_log(
    log: DataFrame, keys: FrequentKeys, numbering: Numbering, folder: Path
) -> DataFrame:
    """Return the kept interactions with columns `user_row` and `item_id`.

    Args:
        log: All interactions.
        keys: What the filters kept.
        numbering: Final numbers of those keys.
        folder: Where the numbers are laid out for Spark.
    """
    folder.mkdir()
    items = pl.DataFrame({"item": keys.items, "item_id": numbering.items})
    items = items.with_columns(withheld=pl.Series(numbering.withheld[numbering.items]))
    users = pl.DataFrame({"user": keys.users, "user_row": numbering.users})
    for name, table in (("item", items), ("user", users)):
        table.write_parquet(folder / f"{name}.parquet")
        log = log.join(log.sparkSession.read.parquet(f"file://{folder}/{name}.parquet"), name)
    withheld = log["withheld"] & (log["user_row"] < numbering.withheld_before)
    return log.filter(~withheld).drop("user", "withheld")


def lengths_of(numbered: DataFrame, num_users: int, folder: Path) -> np.ndarray:
    """Return how many interactions each user row has.  Shape `[num_users]`, int64."""
    numbered.groupBy("user_row").count().write.parquet(f"file://{folder}")
    counted = pl.read_parquet(sorted(folder.glob("*.parquet")))
    lengths = np.zeros(num_users, dtype=np.int64)
    lengths[counted["user_row"].to_numpy()] = counted["count"].to_numpy()
    return lengths


def ordered_log(
    numbered: DataFrame, folder: Path, *, ties: str, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sort by (user, time, tie rule) and yield items and times in that order.

    Spark numbers the files of a sorted frame in its order, so that they can be read one by one.
    """
    if ties == "shuffle":
        numbered = _with_mixed(numbered.drop("item"), seed)
    order = ("user_row", "time", TIE_COLUMNS[ties], "row")
    numbered.orderBy(*order).select("item_id", "time").write.parquet(f"file://{folder}")
    for file in sorted(folder.glob("*.parquet")):
        for frame in pl.scan_parquet(file).collect_batches(
            maintain_order=True, chunk_size=BATCH_ROWS
        ):
            yield frame["item_id"].to_numpy(), frame["time"].to_numpy()


def _with_mixed(numbered: DataFrame, seed: int) -> DataFrame:
    """Add column `mixed`, whose order is that of `mix(row, seed)`."""
    from pyspark.sql.types import LongType, StructType

    schema = StructType([*numbered.schema.fields]).add("mixed", LongType())
    return numbered.mapInArrow(partial(_mix_rows, seed=seed), schema)


def _mix_rows(batches: Iterator[RecordBatch], seed: int) -> Iterator[RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        mixed = mix(batch.column("row").to_numpy(), seed) ^ SIGN  # Spark's numbers have a sign
        yield batch.append_column("mixed", pa.array(mixed.view(np.int64)))
