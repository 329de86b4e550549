"""Read, filter, number and sort a log on Apache Spark, to the same bytes as on one machine.

    crossbatch prepare LAKE --engine spark --out DATASET

Spark reads the files, filters, numbers and sorts; the driver holds the keys and counts of users and
items and appends the sorted files to the arrays.  LAKE and DATASET must be paths that the driver
and all workers share.  Workers read the parts of a log with the readers that one machine would use,
which gives the same ids, times and refused lines.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import offsets_of
from crossbatch.data.prepare.event_columns import event_columns
from crossbatch.data.prepare.local_engine import SortedLog, accounting
from crossbatch.data.prepare.numbering import Frequent, number_keys
from crossbatch.data.prepare.sequences import mix, save_sequences
from crossbatch.data.prepare.staged_log import TimeReader, check_read, usable
from crossbatch.data.readers.source import Part, Source, Tally
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

    from crossbatch.data.prepare.numbering import Numbering
    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.progress import Progress

SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has its Java already
TIE_COLUMNS = {"shuffle": "mixed", "stable": "row", "item": "item"}
BATCH_ROWS = 1 << 20
SIGN = np.uint64(1 << 63)
# A part's last record holds its tally instead of an interaction. Spark discards the output of a
# task that it runs again after a failure, so that nothing is counted twice.
COLUMNS = {
    "part": "int",
    "line": "long",
    "user": "string",
    "item": "string",
    "time": "long",
    "tally": "string",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
MOST_TASKS = 10_000


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
    if event_columns(source, options, folder):
        raise ConfigError(
            "the engine spark reads no weights, context, sessions or impressions: use --engine "
            "polars"
        )
    staging = folder.absolute() / "staging"
    staging.mkdir()
    with spark_session() as session:
        progress("reading", 0, source.expected_rows)
        log = read_log(session, source, staging / "log", tally, options.min_rating)
        progress("filtering", 0, None)
        keys, frequent = keep_frequent(log, staging, options)
        numbering = number_keys(frequent, options)
        if options.cold_items:
            numbered = numbered_log(log.frame, keys, numbering, staging / "before")
            lengths = lengths_of(numbered, len(numbering.lengths), staging / "lengths")
            numbering = replace(numbering, lengths=lengths)
        progress("sorting", 0, None)
        offsets = offsets_of(numbering.lengths)
        kept = numbered_log(log.frame, keys, numbering, staging / "numbers")
        ordered = ordered_log(kept, staging / "ordered", ties=options.ties, seed=options.seed)
        save_sequences(folder, offsets, ordered)
    shutil.rmtree(staging)
    return SortedLog(
        offsets=offsets,
        item_keys=keys["item"].gather(numbering.item_codes).alias("key"),
        user_keys=keys["user"].gather(numbering.user_codes).alias("key"),
        bounds=numbering.bounds,
        below_rating=log.below_rating,
        accounting=accounting(frequent, numbering),
    )


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


class SparkLog(NamedTuple):
    """Usable interactions as a Spark frame.

    Its columns are `user`, `item`, `time` (microseconds) and `row`, the interaction's number in the
    log, as one machine would count it.
    """

    frame: DataFrame
    rows: int
    below_rating: int  # interactions left out for their rating


def read_log(
    session: SparkSession, source: Source, folder: Path, tally: Tally, min_rating: float | None
) -> SparkLog:
    """Read all parts into Parquet files of `folder`, once, and return them as a frame.

    Raises:
        DataError: If too many lines were refused or nothing is left.
    """
    from pyspark.sql import functions as f

    read = partial(
        _read_parts,
        parts=source.parts,
        unit=_time_unit(source, tally, min_rating),
        min_rating=min_rating,
    )
    size = len(source.parts)
    numbers = session.range(0, size, 1, numPartitions=min(size, MOST_TASKS))
    with _workers_errors():
        numbers.mapInArrow(read, SCHEMA).write.parquet(f"file://{folder}")
    staged = session.read.schema(SCHEMA).parquet(f"file://{folder}")
    found = staged.filter("tally is not null").orderBy("part").select("tally").collect()
    tallies: list[dict[str, Any]] = [json.loads(record["tally"]) for record in found]
    for other in tallies:
        tally.merge(other)
    ends = list(accumulate(other["rows"] for other in tallies))
    check_read(source, tally, ends[-1])
    starts = session.createDataFrame(list(enumerate([0, *ends[:-1]])), "part int, start long")
    log = staged.filter("tally is null").join(f.broadcast(starts), "part")
    frame = log.select("user", "item", "time", (f.col("start") + f.col("line")).alias("row"))
    return SparkLog(frame, ends[-1], sum(other["below_rating"] for other in tallies))


@contextmanager
def _workers_errors() -> Iterator[None]:
    """Raise a reader's `DataError` from a worker as the same error here."""
    from pyspark.errors import PythonException

    try:
        yield
    except PythonException as error:
        found = re.search(rf"{DataError.__module__}\.DataError: (.*)", str(error))
        if found is None:
            raise
        raise DataError(found[1]) from error


def _time_unit(source: Source, tally: Tally, min_rating: float | None) -> str:
    """Decide the unit of times once, by the log's first frame; workers must not differ."""
    time_reader = TimeReader(source.time_unit, tally)
    first = next(source.parts[0](Tally()), None)
    if first is not None:
        usable(first, time_reader, Tally(), min_rating)
    return time_reader.unit


def _read_parts(
    batches: Iterator[RecordBatch], parts: Sequence[Part], unit: str, min_rating: float | None
) -> Iterator[RecordBatch]:
    """Yield the interactions of the parts whose numbers come in, and a tally after each part."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield from _read_part(number, parts[number], unit, min_rating)


def _read_part(
    number: int, part: Part, unit: str, min_rating: float | None
) -> Iterator[RecordBatch]:
    tally = Tally()
    time_reader = TimeReader(unit, tally)
    rows = below_rating = 0
    for frame in part(tally):
        kept, low = usable(frame, time_reader, tally, min_rating)
        lines = pl.int_range(rows, rows + len(kept), dtype=pl.Int64, eager=True).alias("line")
        yield from _records(kept.with_columns(lines, part=pl.lit(number)))
        rows, below_rating = rows + len(kept), below_rating + low
    summary = json.dumps({**tally.counted, "rows": rows, "below_rating": below_rating})
    yield from _records(pl.DataFrame({"part": [number], "tally": [summary]}))


def _records(frame: pl.DataFrame) -> Iterator[RecordBatch]:
    """Yield a frame as Spark's `SCHEMA`; columns that it lacks are null."""
    import pyarrow as pa

    kinds = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    missing = [pl.lit(None).alias(name) for name in schema.names if name not in frame.columns]
    table = frame.with_columns(missing).select(schema.names).to_arrow()
    yield from table.cast(schema).to_batches()
