"""Read, filter, number and sort a log on this machine: stages 1 to 3 of preparation.

Split, content and manifest follow from the `SortedLog`, whichever engine made it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from crossbatch.data.prepare.context_columns import context_columns, write_context_schema
from crossbatch.data.prepare.event_columns import EventColumn, SessionColumn, WeightColumn
from crossbatch.data.prepare.impressions import ImpressionColumn
from crossbatch.data.prepare.numbering import (
    Frequent,
    Numbering,
    keep_frequent,
    number_keys,
    with_counted_lengths,
)
from crossbatch.data.prepare.options import PrepareOptions
from crossbatch.data.prepare.rest import write_rest
from crossbatch.data.prepare.sequences import Written, write_sequences
from crossbatch.data.prepare.staged_log import StagedLog, read_log
from crossbatch.data.readers.source import Source, Tally
from crossbatch.errors import ConfigError
from crossbatch.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import polars as pl


STAGING = "staging"  # folder of temporary files


class SortedLog(NamedTuple):
    """What an engine returns, beside `offsets.npy`, `items.npy` and `times.npy` in the folder."""

    offsets: np.ndarray  # [num_users + 1] int64, where each user's interactions begin
    item_keys: pl.Series  # [num_items], original keys of the items 1, 2 …
    user_keys: pl.Series  # [num_users], original keys of the users
    bounds: tuple[int, int]  # where the valid and the test users begin
    accounting: dict[str, int]  # how many interactions were kept or dropped, and why
    context: Mapping[str, Any] = MappingProxyType({})  # of each context feature, for the manifest


Engine = Callable[[Source, Path, PrepareOptions, Tally, Progress], SortedLog]
"""`engine(source, folder, options, tally, progress)`: write the sorted log to a folder."""


def sort_log(
    source: Source, folder: Path, options: PrepareOptions, tally: Tally, progress: Progress
) -> SortedLog:
    """Sort a log on this machine; memory holds one chunk or one bucket of it at a time."""
    staging = folder / STAGING
    staging.mkdir()
    staged = StagedLog(staging, event_columns(source, options, staging))
    user_split = read_log(source, staged, tally, options, progress)
    progress("filtering", 0, None)
    frequent = keep_frequent(
        staged, options.min_item_count, options.min_user_count, core=options.core
    )
    numbering = number_keys(frequent, options, user_split)
    if options.cold_items:
        numbering = with_counted_lengths(numbering, staged)
    return write_sorted(source, folder, options, staged, frequent, numbering, progress)


def write_sorted(
    source: Source,
    folder: Path,
    options: PrepareOptions,
    log: StagedLog,
    frequent: Frequent,
    numbering: Numbering,
    progress: Progress,
    written: Written | None = None,
) -> SortedLog:
    """Write the sequences of a staged log, merged into `written` ones, and remove the staging."""
    item_keys = log.item_codes.keys.gather(numbering.item_codes)
    for column in log.columns:
        column.match(item_keys)
    offsets = write_sequences(log, numbering, folder, options, progress, written)
    if options.growing:
        write_rest(folder, log, numbering, described_columns(source, options))
    shutil.rmtree(folder / STAGING)
    return SortedLog(
        offsets=offsets,
        item_keys=item_keys,
        user_keys=log.user_codes.keys.gather(numbering.user_codes),
        bounds=numbering.bounds,
        accounting=accounting(frequent, numbering),
        context=write_context_schema(folder, log.columns),
    )


def accounting(frequent: Frequent, numbering: Numbering) -> dict[str, int]:
    """Return how many interactions were kept and dropped: kept + dropped = staged.

    Of a dataset that days are added to, its interactions are among those kept.
    """
    kept = int(numbering.lengths.sum())
    cold = int(frequent.user_counts.sum()) - kept if numbering.withheld.any() else 0
    return {
        "staged": kept + cold + frequent.dropped_by_item + frequent.dropped_by_user,
        "dropped_by_item": frequent.dropped_by_item,
        "dropped_by_user": frequent.dropped_by_user,
        "dropped_cold": cold,
        "kept": kept,
        "filter_rounds": frequent.rounds,
    }


def event_columns(
    source: Source, options: PrepareOptions, staging: Path
) -> tuple[EventColumn, ...]:
    """Return what the dataset keeps of each interaction of a source; `staging` is for its files.

    Raises:
        ConfigError: If kinds of events have no weights, or weights no kinds.
    """
    if "event" in source.event_columns and options.event_weights is None:
        raise ConfigError(
            "the kinds of events need weights: name them with --event-weights, such as "
            "view=0,click=1,buy=5 (0: only in histories; kinds not named are left out)"
        )
    if options.event_weights is not None and "event" not in source.event_columns:
        raise ConfigError("event_weights need the column of events: name it with --event")
    columns: list[EventColumn] = []
    if {"event", "weight"} & set(source.event_columns):
        columns.append(WeightColumn())
    sessions = None
    if "session" in source.event_columns or options.session_gap is not None:
        named = "session" in source.event_columns
        sessions = SessionColumn(named=named, gap=options.session_gap, growing=options.growing)
        columns.append(sessions)
    if "impressions" in source.event_columns:
        columns.append(ImpressionColumn(staging))
    elif source.shown is not None:
        columns.append(ImpressionColumn(staging, source.shown))
    columns += context_columns(source.context, source.clock, sessions)
    return tuple(columns)


def described_columns(source: Source, options: PrepareOptions) -> dict[str, Any]:
    """Return what a source says of its events, as plain values; further days must say the same."""
    listed = ("event", "weight", "session", "impressions")
    columns: dict[str, Any] = {name: name in source.event_columns for name in listed}
    columns["impressions"] |= source.shown is not None
    columns["session_gap"] = options.session_gap
    columns["context"] = {column.name: column.kind for column in source.context}
    columns["clock"] = list(source.clock)
    return {name: value for name, value in columns.items() if value}
