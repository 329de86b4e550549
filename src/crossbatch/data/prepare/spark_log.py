"""A log on its way through Spark: read on workers, with the readers that one machine would use.

Workers carry the values of each event column beside the interaction, and summaries of the frames
that they read. The driver learns from the summaries in the order of the log, as one machine does
while it reads, and turns the values of sorted interactions into the numbers that it would stage.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import user_runs
from crossbatch.data.prepare.sequences import BUCKET_ROWS, ROW, save_sequences
from crossbatch.data.prepare.staged_log import TimeReader, check_read, usable_events
from crossbatch.data.readers.source import Part, Source, Tally, reader_errors
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

    from crossbatch.data.prepare.event_columns import Carried, EventColumn
    from crossbatch.data.prepare.options import PrepareOptions

# Spark's type of the values of each kind
KINDS = {
    "weight": "double",
    "number": "double",
    "text": "string",
    "key": "string",
    "list": "array<string>",
}
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
MOST_TASKS = 10_000


def staged(columns: Sequence[EventColumn]) -> list[tuple[EventColumn, Carried]]:
    """Return the columns that need values of the log, each with what workers carry for it."""
    return [(column, column.carried) for column in columns if column.carried is not None]


def event_name(number: int) -> str:
    """Return the name of a carried column among Spark's, where names have no dots."""
    return f"event{number}"


def learn(columns: Sequence[EventColumn], summaries: Iterable[list[list[float]]]) -> None:
    """Tell columns of the frames that workers read, in the order of the log."""
    for summary in summaries:
        for (column, _), part in zip(staged(columns), summary, strict=True):
            column.learn(part)


def save_events(
    folder: Path,
    offsets: np.ndarray,
    frames: Iterator[pl.DataFrame],
    columns: Sequence[EventColumn],
    item_keys: pl.Series,
) -> None:
    """Write the sequences and the arrays of event columns from frames of sorted interactions.

    `frames` have columns `item_id`, `time` and those that were carried; users' interactions begin
    at `offsets` `[num_users + 1]`, and `item_keys` are those of the items 1, 2 ….
    """
    needed = staged(columns)
    row = np.dtype([*ROW.descr, *((column.name, column.dtype) for column, _ in needed)])

    def ordered() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for run, frame in _whole_users(frames, offsets):
            rows = np.zeros(len(frame), row)
            lengths = np.diff(offsets[run.start : run.stop + 1])
            rows["user"] = np.repeat(np.arange(run.start, run.stop), lengths)
            rows["item"], rows["time"] = frame["item_id"].to_numpy(), frame["time"].to_numpy()
            for number, (column, _) in enumerate(needed):
                rows[column.name] = column.numbers(frame[event_name(number)])
            for column, append in zip(columns, appends, strict=True):
                column.match(item_keys)  # its lists may have new ones
                append(rows)
            yield rows["item"], rows["time"]

    total = int(offsets[-1])
    with ExitStack() as stack:
        appends = [stack.enter_context(column.writer(folder, total)) for column in columns]
        save_sequences(folder, offsets, ordered())


def _whole_users(
    frames: Iterator[pl.DataFrame], offsets: np.ndarray
) -> Iterator[tuple[slice, pl.DataFrame]]:
    """Cut sorted interactions anew, so that a frame has those of whole users."""
    held, size = [], 0
    for run in user_runs(offsets, BUCKET_ROWS):
        wanted = int(offsets[run.stop] - offsets[run.start])
        while size < wanted:
            held.append(next(frames))
            size += len(held[-1])
        whole = pl.concat(held) if held else pl.DataFrame()
        yield run, whole[:wanted]
        held, size = [whole[wanted:]], size - wanted


class SparkLog(NamedTuple):
    """Usable interactions as a Spark frame.

    Its columns are `user`, `item`, `time` (microseconds), `row`, the interaction's number in the
    log, as one machine would count it, and what is carried for event columns.
    """

    frame: DataFrame
    rows: int
    summaries: list[list[list[float]]]  # of each frame that was read, in the order of the log


def read_log(
    session: SparkSession,
    source: Source,
    folder: Path,
    tally: Tally,
    options: PrepareOptions,
    carried: tuple[Carried, ...],
) -> SparkLog:
    """Read all parts into Parquet files of `folder`, once, and return them as a frame.

    Raises:
        DataError: If too many lines were refused or nothing is left.
    """
    from pyspark.sql import functions as f

    read = partial(
        _read_parts,
        parts=source.parts,
        unit=_time_unit(source, tally),
        options=options,
        carried=carried,
    )
    schema = ", ".join(f"{name} {kind}" for name, kind in _spark_types(carried).items())
    size = len(source.parts)
    numbers = session.range(0, size, 1, numPartitions=min(size, MOST_TASKS))
    with _workers_errors():
        numbers.mapInArrow(read, schema).write.parquet(f"file://{folder}")
    staged = session.read.schema(schema).parquet(f"file://{folder}")
    found = staged.filter("tally is not null").orderBy("part").select("tally").collect()
    tallies: list[dict[str, Any]] = [json.loads(record["tally"]) for record in found]
    for other in tallies:
        tally.merge(other)
    ends = list(accumulate(other["rows"] for other in tallies))
    check_read(source, tally, ends[-1])
    starts = session.createDataFrame(list(enumerate([0, *ends[:-1]])), "part int, start long")
    log = staged.filter("tally is null").join(f.broadcast(starts), "part")
    row = (f.col("start") + f.col("line")).alias("row")
    frame = log.select("user", "item", "time", row, *map(event_name, range(len(carried))))
    return SparkLog(
        frame,
        ends[-1],
        [summary for other in tallies for summary in other["summaries"]],
    )


def _spark_types(carried: tuple[Carried, ...]) -> dict[str, str]:
    """Return Spark's types of what workers give."""
    return COLUMNS | {event_name(number): KINDS[each.kind] for number, each in enumerate(carried)}


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


def _time_unit(source: Source, tally: Tally) -> str:
    """Decide the unit of times once, by the log's first frame; workers must not differ."""
    time_reader = TimeReader(source.time_unit, tally)
    first = next(source.parts[0](Tally()), None)
    if first is not None:
        with reader_errors("the time column"):
            time_reader.read(first["time"])
    return time_reader.unit


def _read_parts(
    batches: Iterator[RecordBatch],
    parts: Sequence[Part],
    unit: str,
    options: PrepareOptions,
    carried: tuple[Carried, ...],
) -> Iterator[RecordBatch]:
    """Yield the interactions of the parts whose numbers come in, and a tally after each part."""
    schema = _spark_types(carried)
    for batch in batches:
        for number in batch.column("id").to_pylist():
            tally = Tally()
            time_reader = TimeReader(unit, tally)
            rows, summaries = 0, []
            for frame in parts[number](tally):
                kept = usable_events(frame, time_reader, tally, options)
                values = [each.values(kept) for each in carried]
                summaries.append([summary for _, summary in values])
                kept = kept.select("user", "item", "time").with_columns(
                    pl.int_range(rows, rows + len(kept), dtype=pl.Int64, eager=True).alias("line"),
                    *(column.alias(event_name(n)) for n, (column, _) in enumerate(values)),
                    part=pl.lit(number),
                )
                yield from _records(kept, schema)
                rows += len(kept)
            summary = json.dumps({**tally.counted, "rows": rows, "summaries": summaries})
            yield from _records(pl.DataFrame({"part": [number], "tally": [summary]}), schema)


def _records(frame: pl.DataFrame, types: Mapping[str, str]) -> Iterator[RecordBatch]:
    """Yield a frame with Spark's types; columns that it lacks are null."""
    import pyarrow as pa

    kinds = {
        "int": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "string": pa.string(),
        "array<string>": pa.list_(pa.string()),
    }
    schema = pa.schema([(name, kinds[kind]) for name, kind in types.items()])
    missing = [pl.lit(None).alias(name) for name in schema.names if name not in frame.columns]
    table = frame.with_columns(missing).select(schema.names).to_arrow()
    yield from table.cast(schema).to_batches()
