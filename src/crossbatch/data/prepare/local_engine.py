"""From a source to numbered, chronological sequences on disk: what an engine does.

Everything else of preparation (law, split, content, manifest) follows from what `Arranged` says, so
that it is the same code whatever engine read, filtered and sorted the log.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossbatch.data.dataset.string_table import byte_order
from crossbatch.data.prepare.filtering import keep_frequent
from crossbatch.data.prepare.numbering import number, recount
from crossbatch.data.prepare.options import PrepareOptions
from crossbatch.data.prepare.read_log import ingest
from crossbatch.data.prepare.sequences import write_sequences
from crossbatch.data.progress import Progress
from crossbatch.data.readers.source import Source, Tally

if TYPE_CHECKING:
    import polars as pl

    from crossbatch.data.prepare.filtering import Frequent
    from crossbatch.data.prepare.numbering import Numbered


class Arranged(NamedTuple):
    """What an engine leaves: `offsets.npy`, `items.npy`, `times.npy` in the folder, and this.

    Attributes:
        offsets: Where each user's interactions begin.  Shape `[num_users + 1]`, int64.
        item_keys: Original keys of the items 1, 2 …  Shape `[num_items]`.
        user_keys: Original keys of the user rows.  Shape `[num_users]`.
        bounds: Where the valid and the test users begin.
        below_rating: Interactions left out for their rating.
        accounting: What became of every interaction, for the manifest.
    """

    offsets: np.ndarray
    item_keys: pl.Series
    user_keys: pl.Series
    bounds: tuple[int, int]
    below_rating: int
    accounting: dict[str, int]


Engine = Callable[[Source, Path, PrepareOptions, Tally, Progress], Arranged]
"""`engine(source, folder, options, tally, progress)`: arrange a log in a folder."""


def arrange(
    source: Source, folder: Path, options: PrepareOptions, tally: Tally, progress: Progress
) -> Arranged:
    """Arrange a log on this machine; of the log memory holds a chunk or a bucket at a time."""
    staging = folder / "staging"
    staging.mkdir()
    log, user_split, below_rating = ingest(
        source, staging, tally, min_rating=options.min_rating, progress=progress
    )
    progress("filtering", 0, None)
    least = (options.min_item_count, options.min_user_count)
    frequent = keep_frequent(log, *least, core=options.core)
    numbered = number(
        frequent, options, rows=log.rows, recount=partial(recount, log), given=user_split
    )
    ranks = np.zeros(len(log.item_codes), dtype=np.int64)
    if options.ties == "item":
        ranks[byte_order(log.item_codes.keys)] = np.arange(len(ranks))
    offsets = write_sequences(
        log,
        numbered.numbering,
        folder,
        ties=options.ties,
        seed=options.seed,
        key_ranks=ranks,
        progress=progress,
    )
    shutil.rmtree(staging)
    return Arranged(
        offsets=offsets,
        item_keys=log.item_codes.keys.gather(numbered.item_codes),
        user_keys=log.user_codes.keys.gather(numbered.user_codes),
        bounds=numbered.bounds,
        below_rating=below_rating,
        accounting=accounting(log.rows, frequent, numbered),
    )


def accounting(rows: int, frequent: Frequent, numbered: Numbered) -> dict[str, int]:
    """Return what became of every interaction: kept + dropped = staged."""
    return {
        "staged": rows,
        "dropped_by_item": frequent.dropped_by_item,
        "dropped_by_user": frequent.dropped_by_user,
        "dropped_cold": numbered.dropped_cold,
        "kept": int(numbered.numbering.lengths.sum()),
        "filter_rounds": frequent.rounds,
    }
