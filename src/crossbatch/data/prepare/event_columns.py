"""What a log says of each interaction beside user, item and time: weight, session, context.

An `EventColumn` turns a column of the source into numbers that are staged and sorted with the
interaction, and writes the sorted numbers to arrays of the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from crossbatch.data.prepare.context_columns import context_columns
from crossbatch.data.prepare.impressions import ImpressionColumn
from crossbatch.data.prepare.sessions import SessionColumn
from crossbatch.data.prepare.weights import WeightColumn
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import polars as pl

    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.readers.source import Source

Append = Callable[[np.ndarray], None]
"""`append(rows)`: write the next sorted interactions, those of whole users."""


class EventColumn(Protocol):
    """A column of the log that the dataset keeps for every interaction."""

    @property
    def name(self) -> str:
        """Of the field among sorted rows."""

    @property
    def dtype(self) -> Any:
        """Of what is staged; None if nothing is."""

    def staged(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the numbers of usable rows of the log.  `[n]`, `dtype`."""

    def keep(self, dataset: Path) -> None:
        """Write what further days need to know, beside the staged numbers, to its `rest`."""

    def resume(self, dataset: Path) -> None:
        """Continue from what `keep` wrote, before anything is staged."""

    def writer(self, folder: Path, total: int) -> AbstractContextManager[Append]:
        """Open the arrays of a dataset folder for `total` interactions."""


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
        sessions = SessionColumn(named, options.session_gap, options.growing)
        columns.append(sessions)
    if "impressions" in source.event_columns:
        columns.append(ImpressionColumn(staging))
    elif source.shown is not None:
        columns.append(ImpressionColumn(staging, source.shown))
    columns += context_columns(source.context, source.clock, sessions)
    return tuple(columns)


def match_items(columns: Iterable[EventColumn], item_keys: pl.Series) -> None:
    """Tell the columns that hold items which ids they have: keys of the items 1, 2 …."""
    for column in columns:
        if isinstance(column, ImpressionColumn):
            column.match(item_keys)


def described_columns(source: Source, options: PrepareOptions) -> dict[str, Any]:
    """Return what a source says of its events, as plain values; further days must say the same."""
    listed = ("event", "weight", "session", "impressions")
    columns: dict[str, Any] = {name: name in source.event_columns for name in listed}
    columns["impressions"] |= source.shown is not None
    columns["session_gap"] = options.session_gap
    columns["context"] = {column.name: column.kind for column in source.context}
    columns["clock"] = list(source.clock)
    return {name: value for name, value in columns.items() if value}
