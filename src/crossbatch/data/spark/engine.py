"""Arrange a log on Apache Spark: the same arrays, byte for byte, as on one machine.

    crossbatch prepare LAKE --engine spark --out DATASET

Spark reads the files, filters, numbers and sorts; the driver holds the keys and counts of users and
items and appends the sorted files to the arrays.  LAKE and DATASET must be paths that the driver
and all workers share.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from crossbatch.data.dataset.arrays import offsets_of
from crossbatch.data.prepare.local_engine import Arranged, accounting
from crossbatch.data.prepare.numbering import number
from crossbatch.data.prepare.sequences import Numbering, save_sequences
from crossbatch.data.spark.filtering import keep_frequent
from crossbatch.data.spark.reading import read_log
from crossbatch.data.spark.sequences import lengths_of, numbered_log, ordered_log
from crossbatch.data.spark.session import spark_session
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from crossbatch.data.prepare.options import PrepareOptions
    from crossbatch.data.progress import Progress
    from crossbatch.data.readers.source import Source, Tally


def arrange(
    source: Source, folder: Path, options: PrepareOptions, tally: Tally, progress: Progress
) -> Arranged:
    """Arrange a log on Spark; see `crossbatch.data.prepare.local_engine.Engine`.

    Raises:
        ConfigError: If Spark is not here, or the source has no parts to deal out.
    """
    if not source.parts:
        raise ConfigError(
            f"the engine spark reads tables with a time column, got a {source.format} log without "
            "parts that can be read apart: use --engine polars"
        )
    staging = folder.absolute() / "staging"
    staging.mkdir()
    with spark_session() as session:
        progress("reading", 0, source.expected_rows)
        log = read_log(session, source, staging / "log", tally, options.min_rating)
        progress("filtering", 0, None)
        keys = keep_frequent(log, staging, options)

        def recount(numbering: Numbering) -> np.ndarray:
            numbered = numbered_log(log.frame, keys, numbering, staging / "before")
            return lengths_of(numbered, len(numbering.lengths), staging / "lengths")

        numbered = number(keys.frequent, options, rows=log.rows, recount=recount)
        progress("sorting", 0, None)
        offsets = offsets_of(numbered.numbering.lengths)
        kept = numbered_log(log.frame, keys, numbered.numbering, staging / "numbers")
        ordered = ordered_log(kept, staging / "ordered", ties=options.ties, seed=options.seed)
        save_sequences(folder, offsets, ordered)
    shutil.rmtree(staging)
    return Arranged(
        offsets=offsets,
        item_keys=keys.items.gather(numbered.item_codes).alias("key"),
        user_keys=keys.users.gather(numbered.user_codes).alias("key"),
        bounds=numbered.bounds,
        below_rating=log.below_rating,
        accounting=accounting(log.rows, keys.frequent, numbered),
    )
