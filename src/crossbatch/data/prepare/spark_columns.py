"""What is known of events on its way through Spark.

Workers carry the values of each event column beside the interaction, and summaries of the frames
that they read. The driver learns from the summaries in the order of the log, as one machine does
while it reads, and turns the values of sorted interactions into the numbers that it would stage.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import user_runs
from crossbatch.data.prepare.context_columns import (
    CodedColumn,
    NumericColumn,
    read_numbers,
    text_values,
)
from crossbatch.data.prepare.event_columns import match_items
from crossbatch.data.prepare.impressions import ImpressionColumn
from crossbatch.data.prepare.sequences import BUCKET_ROWS, ROW, save_sequences
from crossbatch.data.prepare.shown_lists import as_lists
from crossbatch.data.prepare.weights import WeightColumn, weight_summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from crossbatch.data.prepare.event_columns import EventColumn

# Spark's type of the values of each kind
KINDS = {
    "weight": "double",
    "number": "double",
    "text": "string",
    "key": "string",
    "list": "array<string>",
}


class Carried(NamedTuple):
    """A column of the source that workers carry."""

    name: str  # in the source
    kind: str  # one of `KINDS`
    separator: str = ""  # of the parts of a list, for "text"

    def values(self, frame: pl.DataFrame) -> tuple[pl.Series, list[float]]:
        """Return the values of usable rows, and what is to be learned of them."""
        column = frame[self.name]
        if self.kind == "weight":
            return column, weight_summary(column.to_numpy())
        if self.kind == "number":
            numbers, summary = read_numbers(column)
            return pl.Series(numbers), summary
        if self.kind == "list":
            return as_lists(column), []
        if self.kind == "text":
            return text_values(column, self.separator), []
        return column.cast(pl.String), []


def staged(columns: Sequence[EventColumn]) -> list[EventColumn]:
    """Return the columns that need values of the log, in the order of `carried`."""
    return [column for column in columns if column.dtype is not None]


def carried(columns: Sequence[EventColumn]) -> tuple[Carried, ...]:
    """Return what workers carry for event columns: one of each that needs values of the log."""
    return tuple(_carried(column) for column in staged(columns))


def _carried(column: EventColumn) -> Carried:
    if isinstance(column, WeightColumn):
        return Carried("weight", "weight")
    if isinstance(column, ImpressionColumn):
        second = column.from_second_file
        return Carried("request", "key") if second else Carried("impressions", "list")
    if isinstance(column, NumericColumn):
        return Carried(f"context.{column.column.name}", "number")
    if isinstance(column, CodedColumn):
        return Carried(f"context.{column.column.name}", "text", column.column.separator)
    return Carried("session", "key")


def event_name(number: int) -> str:
    """Return the name of a carried column among Spark's, where names have no dots."""
    return f"event{number}"


def learn(columns: Sequence[EventColumn], summaries: Iterable[list[list[float]]]) -> None:
    """Tell columns of the frames that workers read, in the order of the log."""
    for summary in summaries:
        for column, part in zip(staged(columns), summary, strict=True):
            if isinstance(column, (WeightColumn, NumericColumn)):
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
    row = np.dtype([*ROW.descr, *((column.name, column.dtype) for column in staged(columns))])

    def ordered() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for run, frame in _whole_users(frames, offsets):
            rows = np.zeros(len(frame), row)
            lengths = np.diff(offsets[run.start : run.stop + 1])
            rows["user"] = np.repeat(np.arange(run.start, run.stop), lengths)
            rows["item"], rows["time"] = frame["item_id"].to_numpy(), frame["time"].to_numpy()
            for number, column in enumerate(staged(columns)):
                renamed = pl.DataFrame({_carried(column).name: frame[event_name(number)]})
                rows[column.name] = _numbers(column, renamed)
            match_items(columns, item_keys)  # the lists may have new ones
            for append in appends:
                append(rows)
            yield rows["item"], rows["time"]

    total = int(offsets[-1])
    with ExitStack() as stack:
        appends = [stack.enter_context(column.writer(folder, total)) for column in columns]
        save_sequences(folder, offsets, ordered())


def _numbers(column: EventColumn, frame: pl.DataFrame) -> Any:
    """Return what one machine stages of rows, but learn nothing of them again."""
    if isinstance(column, (WeightColumn, NumericColumn, CodedColumn)):
        return column.numbers(frame)
    return column.staged(frame)


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
