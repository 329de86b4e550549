"""From a source to a staged log: every line is kept, or refused with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from crossbatch.data.prepare.staged_log import StagedLog
from crossbatch.data.prepare.times import TimeReader
from crossbatch.data.readers.reading_errors import blamed
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.data.progress import Progress
    from crossbatch.data.readers.source import Source, Tally


class Ingested(NamedTuple):
    """A staged log and what only its reader knew.

    Attributes:
        log: The interactions.
        user_split: Split of each user code (0 train, 1 valid, 2 test) if the source gives it.
        below_rating: Interactions left out for their rating.
    """

    log: StagedLog
    user_split: np.ndarray | None
    below_rating: int


def ingest(
    source: Source, folder: Path, tally: Tally, *, min_rating: float | None, progress: Progress
) -> Ingested:
    """Read a whole source into a staged log.

    Raises:
        DataError: If too many lines were refused or nothing is left.
    """
    log, clock = StagedLog(folder), TimeReader(source.time_unit, tally)
    splits: list[np.ndarray] = []
    below_rating = 0
    try:
        for batch in source.batches(tally):
            rows, low = usable(batch, clock, tally, min_rating)
            below_rating += low
            known = len(log.user_codes)
            codes = log.append(rows["user"], rows["item"], rows["time"].to_numpy())
            if "split" in rows.columns:
                splits.append(_new_splits(rows["split"].to_numpy(), codes, known, splits))
            progress("reading", tally.lines, source.expected_rows)
    finally:
        log.close()
    check_read(source, tally, log.rows)
    return Ingested(log, np.concatenate(splits) if splits else None, below_rating)


def check_read(source: Source, tally: Tally, rows: int) -> None:
    """Raise `DataError` if too many lines were refused or nothing is left."""
    tally.check()
    if not rows:
        raise DataError(f"no interactions were read from {_names(source)}: is it the right file?")


def usable(
    batch: pl.DataFrame, clock: TimeReader, tally: Tally, min_rating: float | None
) -> tuple[pl.DataFrame, int]:
    """Return the rows of a batch that have all they need, and how many fell to their rating."""
    for name in ("user", "item"):
        if batch[name].dtype.is_nested():
            raise DataError(f"the {name} column holds {batch[name].dtype}, not ids: name another")
    with blamed("the user, item or time column"):
        ids = [pl.col(name).cast(pl.String) for name in ("user", "item")]
        frame = batch.with_columns(*ids, clock.read(batch["time"]))
    tally.lines += len(frame)
    for name, reason in (("user", "no user id"), ("item", "no item id")):
        present = (frame[name].is_not_null()) & (frame[name] != "")
        frame = _refuse(frame, present, reason, tally)
    timed = frame["time"].is_not_null()
    frame = _refuse(frame, timed, "time missing, unreadable or absurd", tally)
    if min_rating is None:
        return frame, 0
    if "rating" not in frame.columns:
        raise DataError("the source has no rating, so --min-rating cannot be applied: leave it out")
    rated = frame.filter(pl.col("rating").cast(pl.Float64, strict=False) >= min_rating)
    return rated, len(frame) - len(rated)


def _refuse(frame: pl.DataFrame, good: pl.Series, reason: str, tally: Tally) -> pl.DataFrame:
    if good.all():
        return frame
    bad = frame.filter(~good)
    example = ", ".join(f"{key}={value}" for key, value in bad.row(0, named=True).items())
    tally.refuse(reason, len(bad), example)
    return frame.filter(good)


def _new_splits(
    given: np.ndarray, codes: np.ndarray, known: int, earlier: list[np.ndarray]
) -> np.ndarray:
    """Return the splits of users first seen in this batch; a user in two splits is an error."""
    size = max(known, int(codes.max()) + 1 if len(codes) else 0)
    splits = np.full(size, -1, dtype=np.int8)
    if earlier:
        splits[:known] = np.concatenate(earlier)
    new = codes >= known
    splits[codes[new][::-1]] = given[new][::-1]
    if (splits[codes] != given).any():
        raise DataError(
            "a user appears in two of the train, valid and test files: they must be disjoint"
        )
    return splits[known:]


def _names(source: Source) -> str:
    return ", ".join(path.name for path in source.files) or source.format
