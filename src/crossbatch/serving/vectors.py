"""Item vectors for other systems: key, title, count and vector of each item, as Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from crossbatch.data.progress import Progress, silent
from crossbatch.serving.table_file import table_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crossbatch.serving.recommender import Recommender

CHUNK_ITEMS = 65_536


def item_frames(recommender: Recommender) -> Iterator[pl.DataFrame]:
    """Yield all items as frames of `id`, `item`, `title`, `count` and `vector` (float32 `[d]`)."""
    vector = pl.Array(pl.Float32, recommender.dim)
    for start in range(1, recommender.num_items + 1, CHUNK_ITEMS):
        stop = min(start + CHUNK_ITEMS, recommender.num_items + 1)
        yield pl.DataFrame(
            {
                "id": pl.int_range(start, stop, eager=True),
                "item": recommender.item_keys(range(start, stop)),
                "title": recommender.item_titles(range(start, stop)),
                "count": recommender.item_counts[start:stop],
                "vector": pl.Series(recommender.item_vectors[start:stop].numpy(), dtype=vector),
            }
        )


def write_vectors(
    recommender: Recommender, out: Path, *, overwrite: bool = False, progress: Progress = silent
) -> int:
    """Write all items to a Parquet file or as JSON lines, and return how many.

    Args:
        recommender: A bundle, or a run.
        out: The file; written atomically.
        overwrite: Replace an existing file.
        progress: Called with ("items", done, total).
    """
    done = 0
    with table_file(out, overwrite=overwrite, suffixes=(".parquet", ".jsonl")) as add:
        for frame in item_frames(recommender):
            add(frame)
            done += len(frame)
            progress("items", done, recommender.num_items)
    return done
