"""Read, filter, number and sort a log on Apache Spark, to the same bytes as on one machine.

    crossbatch prepare LAKE --engine spark --out DATASET

Spark reads the files, filters, numbers and sorts; the driver holds the keys and counts of users and
items and appends the sorted files to the arrays.  LAKE and DATASET must be paths that the driver
and all workers share.  Workers read the parts of a log with the readers that one machine would use,
which gives the same ids, times and refused lines.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import offsets_of
from crossbatch.data.prepare.context_columns import CodedColumn, write_context_schema
from crossbatch.data.prepare.local_engine import SortedLog, accounting, event_columns
from crossbatch.data.prepare.numbering import Frequent, Numbering, number_keys
from crossbatch.data.prepare.sequences import mix, save_sequences
from crossbatch.data.prepare.spark_log import (
    SparkLog,
    event_name,
    learn,
    read_log,
    save_events,
    staged,
)
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

    from crossbatch.data.prepare.event_columns import EventColumn
    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.readers.source import Source, Tally
    from crossbatch.progress import Progress

SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has its Java already
TIE_COLUMNS = {"shuffle": "mixed", "stable": "row", "item": "item"}
BATCH_ROWS = 1 << 20
SIGN = np.uint64(1 << 63)


def sort_log(
    source: Source, folder: Path, options: PrepareOptions, tally: Tally, progress: Progress
) -> SortedLog:
    """Sort a log on Spark; see `crossbatch.data.prepare.local_engine.Engine`.

    Raises:
        ConfigError: If Spark is not installed, or the source has no parts to read in parallel.
    """
    if not source.parts:
        raise ConfigError(
            f"the engine spark reads tables with a time column, got a {source.format} log without "
            "parts that can be read apart: use --engine polars"
        )
    staging = folder.absolute() / "staging"
    staging.mkdir()
    columns = event_columns(source, options, staging)
    carried = tuple(each for _, each in staged(columns))
    with spark_session() as session:
        progress("reading", 0, source.expected_rows)
        log = read_log(session, source, staging / "log", tally, options, carried)
        learn(columns, log.summaries)
        _learn_values(columns, log.frame, staging)
        progress("filtering", 0, None)
        keys, frequent = keep_frequent(log, staging, options)
        numbering = number_keys(frequent, options)
        item_keys = keys["item"].gather(numbering.item_codes).alias("key")
        if options.cold_items:
            numbered = numbered_log(log.frame, keys, numbering, staging / "before")
            lengths = lengths_of(numbered, len(numbering.lengths), staging / "lengths")
            numbering = replace(numbering, lengths=lengths)
        progress("sorting", 0, None)
        offsets = offsets_of(numbering.lengths)
        kept = numbered_log(log.frame, keys, numbering, staging / "numbers")
        ordered = ordered_log(kept, staging / "ordered", ties=options.ties, seed=options.seed)
        if columns:
            save_events(folder, offsets, ordered, columns, item_keys)
        else:
            pairs = ((each["item_id"].to_numpy(), each["time"].to_numpy()) for each in ordered)
            save_sequences(folder, offsets, pairs)
    shutil.rmtree(staging)
    return SortedLog(
        offsets=offsets,
        item_keys=item_keys,
        user_keys=keys["user"].gather(numbering.user_codes).alias("key"),
        bounds=numbering.bounds,
        accounting=accounting(frequent, numbering),
        context=write_context_schema(folder, columns),
    )


def _learn_values(columns: Sequence[EventColumn], log: DataFrame, folder: Path) -> None:
    """Tell columns of text which values the log has, by first appearance, and how often each."""
    for number, (column, _) in enumerate(staged(columns)):
        if isinstance(column, CodedColumn):
            name, place = event_name(number), folder / f"values-{number}"
            _counted(log.filter(log[name].isNotNull()), name, place)
            found = pl.read_parquet(sorted(place.glob("*.parquet"))).sort("first")
            column.learn_values(found[name], found["count"].to_numpy())


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Yield the running session (of `spark-submit`), or a local one that ends with the body.

    Raises:
        ConfigError: If pyspark, what its Arrow functions need, or Java is missing.
    """
    missing = [name for name in ("pyspark", "pandas", "pyarrow") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the engine spark needs {missing[0]}, which is not installed: "
            "pip install 'crossbatch[spark]'"
        )
    if not (SUBMITTED in os.environ or os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise ConfigError(
            "the engine spark needs Java 17 or newer, and no java was found: install a JRE "
            "(Debian: default-jre-headless) or set JAVA_HOME"
        )
    from pyspark.sql import SparkSession

    if SUBMITTED not in os.environ:  # workers on this machine need what is installed here
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    running = SparkSession.getActiveSession()
    ours = SparkSession.builder.appName("crossbatch prepare")
    session = running or ours.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    try:
        yield session
    finally:
        if running is None:
            session.stop()


def keep_frequent(
    log: SparkLog, folder: Path, options: PrepareOptions
) -> tuple[dict[str, pl.Series], Frequent]:
    """Return the kept keys of "item" and "user" in order of first appearance, and their counts.

    The codes of the counts are positions in the keys.  Every round leaves its keys as Parquet files
    in `folder`.
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
        last = not options.core or (
            items.count() == kept_items.count() and users.count() == kept_users.count()
        )
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
        rows=log.rows,
        dropped_by_item=log.rows - with_kept_items,
        dropped_by_user=with_kept_items - int(user_counts.sum()),
        rounds=rounds,
    )
    return {"item": item_keys, "user": user_keys}, frequent


def _counted(log: DataFrame, name: str, folder: Path) -> DataFrame:
    """Return count and first row of each key, written to Parquet and read back."""
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


def numbered_log(
    log: DataFrame, keys: dict[str, pl.Series], numbering: Numbering, folder: Path
) -> DataFrame:
    """Return the kept interactions with columns `user_row` and `item_id`.

    The ids are written to `folder` for Spark.
    """
    folder.mkdir()
    items = pl.DataFrame({"item": keys["item"], "item_id": numbering.items})
    items = items.with_columns(withheld=pl.Series(numbering.withheld[numbering.items]))
    users = pl.DataFrame({"user": keys["user"], "user_row": numbering.users})
    for name, table in (("item", items), ("user", users)):
        table.write_parquet(folder / f"{name}.parquet")
        log = log.join(log.sparkSession.read.parquet(f"file://{folder}/{name}.parquet"), name)
    withheld = log["withheld"] & (log["user_row"] < numbering.bounds[0])
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
) -> Iterator[pl.DataFrame]:
    """Sort by (user, time, tie rule) and yield items, times and event columns in that order.

    Spark numbers the files of a sorted frame in its order, so that they can be read one by one.
    """
    if ties == "shuffle":
        numbered = _with_mixed(numbered.drop("item"), seed)
    order = ("user_row", "time", TIE_COLUMNS[ties], "row")
    known = ("user_row", "item_id", "time", "row", "item", "mixed")
    events = [name for name in numbered.columns if name not in known]
    numbered.orderBy(*order).select("item_id", "time", *events).write.parquet(f"file://{folder}")
    for file in sorted(folder.glob("*.parquet")):
        yield from pl.scan_parquet(file).collect_batches(maintain_order=True, chunk_size=BATCH_ROWS)


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
