"""Logs with kinds of events, weights, sessions, impressions and context of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from crossbatch.data import Column, ReadOptions, Source, open_source

if TYPE_CHECKING:
    from pathlib import Path

READING: dict[str, Any] = {
    "event": "kind",
    "weight": "times",
    "session": "visit",
    "impressions": "shown",
    "context": (
        Column("device", "categorical"),
        Column("tags", "multi_valued"),
        Column("query", "text"),
        Column("price", "numeric"),
    ),
    "clock": ("hour_of_day", "since_last", "session_items"),
    "time_unit": "s",
}
EVENT_WEIGHTS = {"view": 0.0, "click": 1.0, "buy": 5.0}


def event_log(num_users: int = 60, num_items: int = 12, size: int = 900) -> pl.DataFrame:
    """Random events; ties of time among them, values missing, a kind without a weight."""
    rng = np.random.default_rng(5)

    def some(*values: Any) -> list[Any]:
        return [values[number] for number in rng.integers(len(values), size=size)]

    return pl.DataFrame(
        {
            "user": [f"u{user}" for user in rng.integers(num_users, size=size)],
            "item": [f"i{item}" for item in rng.integers(num_items, size=size)],
            "time": 1_600_000_000 + 1_800 * rng.integers(400, size=size),
            "kind": some("view", "click", "click", "buy", "other"),
            "times": some(1.0, 2.0, 0.25),
            "visit": some("s1", "s2", None),
            "shown": some("i0|i1", "i2|zz|i3", "", None),
            "device": some("phone", "tv", "", None),
            "tags": some("p|q", "q", "r|p", None),
            "query": some("Red fox", "blue red", None),
            "price": some(1.0, 3.5, None),
        }
    )


def event_source(folder: Path, **reading: Any) -> Source:
    """The log of `event_log` as the Parquet files of a folder, four of them."""
    folder.mkdir(parents=True, exist_ok=True)
    frame = event_log()
    for number, part in enumerate(frame.iter_slices(-(-len(frame) // 4))):
        part.write_parquet(folder / f"part-{number}.parquet")
    return open_source(folder, "table", ReadOptions(**READING | reading))
