"""Read tables, and write them piece by piece in bounded memory, item vectors among them.

write_vectors(bundle, Path("items.parquet"))
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from crossbatch.data.progress import Progress, silent
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import atomic_file, locked_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crossbatch.serving.recommender import Recommender

SCANS: dict[str, Callable[[Path], pl.LazyFrame]] = {
    ".parquet": pl.scan_parquet,
    ".csv": lambda path: pl.scan_csv(path, infer_schema=False),  # all columns stay strings
    ".jsonl": pl.scan_ndjson,
}
SINKS: dict[str, Callable[[pl.LazyFrame, Path], Any]] = {
    ".parquet": lambda frame, path: frame.sink_parquet(path),
    ".csv": lambda frame, path: _without_formulas(frame).sink_csv(path),
    ".jsonl": lambda frame, path: frame.sink_ndjson(path),
}
FORMULA = r"^[=+\-@\t\r]"  # what spreadsheets compute
NUMBER = r"^[+-]?[\d.]+$"
PART_ROWS = 1 << 19
CHUNK_ITEMS = 65_536


@contextmanager
def scanned_table(path: Path, option: str) -> Iterator[pl.LazyFrame]:
    """Yield a table that `option` names; while it is read inside, failures are one sentence.

    Raises:
        ConfigError: If the suffix of the file is unknown.
        DataError: If it cannot be read.
    """
    if path.suffix not in SCANS:
        raise ConfigError(f"{option} must end in {', '.join(SCANS)}, got {path.name!r}")
    try:
        yield SCANS[path.suffix](path)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} cannot be read: {reason}") from None


@contextmanager
def table_file(
    out: Path, *, overwrite: bool, suffixes: tuple[str, ...] = tuple(SINKS)
) -> Iterator[Callable[[pl.DataFrame], None]]:
    """Yield a function that adds rows to the file; the file appears when the body succeeds.

    Raises:
        ConfigError: If the file cannot be written there.
        DataError: If no rows were added.
    """
    if out.suffix not in suffixes:
        raise ConfigError(f"--out must end in {', '.join(suffixes)}, got {out.name!r}")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} already exists: choose another --out or pass --overwrite")
    if not out.parent.is_dir():
        raise ConfigError(f"the folder of {out} does not exist: make it first")
    written: list[Path] = []
    waiting: list[pl.DataFrame] = []
    with locked_folder(out) as parts:

        def add(rows: pl.DataFrame) -> None:
            waiting.append(rows)
            if sum(map(len, waiting)) >= PART_ROWS:
                flush()

        def flush() -> None:
            path = parts / f"{len(written):09d}.parquet"
            pl.concat(waiting).write_parquet(path)
            written.append(path)
            waiting.clear()

        try:
            yield add
            if waiting:
                flush()
            if not written:
                raise DataError(f"there was nothing to write to {out}")
            with atomic_file(out) as whole:
                SINKS[out.suffix](pl.scan_parquet(written), whole)
        except pl.exceptions.PolarsError as error:  # polars hides the system's error number
            raise OSError(f"{out} could not be written: {error}") from None


def _without_formulas(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Text that spreadsheets would run gets an apostrophe before it; numbers stay."""
    text = pl.col(pl.String)
    runs = text.str.contains(FORMULA) & ~text.str.contains(NUMBER)
    return frame.with_columns(pl.when(runs).then("'" + text).otherwise(text).name.keep())


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
    recommender: Recommender,
    out: Path | str,
    *,
    overwrite: bool = False,
    progress: Progress = silent,
) -> int:
    """Write all items to a Parquet file or as JSON lines, atomically, and return how many."""
    done = 0
    with table_file(Path(out), overwrite=overwrite, suffixes=(".parquet", ".jsonl")) as add:
        for frame in item_frames(recommender):
            add(frame)
            done += len(frame)
            progress("items", done, recommender.num_items)
    return done
