"""Read the parts of a log on Spark's workers, with the readers that one machine would use.

Shared readers give the same ids, times and refused lines; Spark distributes the files and keeps
what was read.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from crossbatch.data.prepare.staged_log import TimeReader, check_read, usable
from crossbatch.data.readers.source import Part, Source, Tally
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

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


class SparkLog(NamedTuple):
    """Usable interactions as a Spark frame.

    Attributes:
        frame: Columns `user`, `item`, `time` (microseconds) and `row`, the interaction's number in
            the log, as one machine would count it.
        rows: How many there are.
        below_rating: Interactions left out for their rating.
    """

    frame: DataFrame
    rows: int
    below_rating: int


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
