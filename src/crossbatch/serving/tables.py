"""Tables in files, read and written piece by piece: lists for a file of users, item vectors.

recommend_users(bundle, Path("users.parquet"), Path("lists.parquet"), k=20)
write_vectors(bundle, Path("items.parquet"))
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from crossbatch.data.dataset.features import encode_table
from crossbatch.errors import ConfigError, DataError, reason_of
from crossbatch.files import atomic_file, locked_folder
from crossbatch.progress import Progress, silent
from crossbatch.serving.user_features import Profiles, feature_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from crossbatch.serving.recommender import Ranking, Recommender

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
CHUNK_USERS = 1024
CHUNK_CELLS = 1 << 21  # of a chunk's histories, padded to the longest
USER_COLUMNS = ("user", "user_id", "userId", "uid")
HISTORY_COLUMNS = ("history", "items", "item_ids", "sequence")
SEPARATOR = ","  # between the items of a history that is a plain string


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
        raise DataError(f"{path} cannot be read: {reason_of(error)}") from None


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


@dataclass(slots=True)
class Tally:
    """Counts of what a file of users held."""

    users: int = 0
    rows: int = 0  # items listed in all
    items: int = 0  # of all histories
    unknown: int = 0  # of these items, those that are not in the catalogue
    popular: int = 0  # users without a known item or feature, who got the most popular items


def recommend_users(
    recommender: Recommender,
    users: Path | str,
    out: Path | str,
    *,
    k: int,
    exclude_seen: bool = True,
    filter: Mapping[str, Any] | None = None,  # noqa: A002 - named as in a request
    candidates: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress = silent,
) -> Tally:
    """Write a row (user, rank, item, title, score) for each item of each user's list.

    Args:
        recommender: A bundle, or a run.
        users: Parquet, CSV or JSON lines with columns `user` and `history`, oldest item first: a
            list, or a string with commas. Columns named as user features are read as such.
        out: Parquet, CSV or JSON lines, by its suffix; written atomically.
        k: Length of the lists.
        exclude_seen: Whether items of a history stay out of its list.
        filter: Conditions on the filter columns, for all users.
        candidates: Keys of the only items that any list may hold.
        exclude: Keys of items that no list may hold.
        overwrite: Replace an existing file.
        progress: Called with ("users", done, total).

    Raises:
        ConfigError: If the kind of a file, a column or k is wrong.
        DataError: If the users cannot be read.
    """
    tally = Tally()
    banned = recommender.item_ids(list(exclude))
    options = {
        "exclude_seen": exclude_seen,
        "allowed": recommender.allowed(filter, candidates),
        "exclude": banned[banned > 0],
    }
    features = [*recommender.user_encoders, *recommender.context_encoders]
    with table_file(Path(out), overwrite=overwrite) as add:
        for frame, total in _frames(Path(users), features):
            for chunk in _chunks(frame):
                add(_lists(recommender, chunk, k, tally, options))
                progress("users", tally.users, total)
    return tally


def _frames(path: Path, features: list[str]) -> Iterator[tuple[pl.DataFrame, int | None]]:
    """Yield frames of `user`, `history` and features, each with the number of users if known."""
    with scanned_table(path, "--users") as table:
        schema = table.collect_schema()
        user = _column(path, schema, USER_COLUMNS)
        history = _column(path, schema, HISTORY_COLUMNS)
        items = pl.col(history)
        if not isinstance(schema[history], pl.List):
            items = items.cast(pl.String).str.split(SEPARATOR)
        chosen = [pl.col(user).alias("user"), items.cast(pl.List(pl.String)).alias("history")]
        chosen += [pl.col(name) for name in features if name in schema]
        total = None
        if path.suffix == ".parquet":
            total = int(table.select(pl.len()).collect().item())
        batches = table.select(chosen).collect_batches(
            maintain_order=True, chunk_size=16 * CHUNK_USERS
        )
        for frame in batches:
            yield frame, total


def _chunks(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Cut a frame into chunks whose histories take little memory when padded to the longest."""
    lengths = frame["history"].list.len().fill_null(0).to_numpy()
    start = 0
    while start < len(frame):
        longest = np.maximum.accumulate(lengths[start : start + CHUNK_USERS].astype(np.int64))
        cells = longest * np.arange(1, len(longest) + 1)
        size = max(1, int(np.searchsorted(cells, CHUNK_CELLS, side="right")))
        yield frame[start : start + size]
        start += size


def _lists(
    recommender: Recommender, frame: pl.DataFrame, k: int, tally: Tally, options: dict[str, Any]
) -> pl.DataFrame:
    histories, unknown = _known(recommender, frame["history"])
    profiles = _profiles(recommender, frame)
    exclude = [options["exclude"]] * len(histories)
    ranking = recommender.rank(histories, k, profiles=profiles, **options | {"exclude": exclude})
    tally.users += len(frame)
    tally.items += unknown + sum(map(len, histories))
    tally.unknown += unknown
    tally.popular += int(ranking.popular.sum())
    lists = named_lists(recommender, frame["user"], ranking)
    tally.rows += len(lists)
    return lists


def _known(recommender: Recommender, histories: pl.Series) -> tuple[list[np.ndarray], int]:
    """Ids of each history's items, and how many keys are no items; each key is looked up once."""
    rows = pl.DataFrame({"row": pl.int_range(len(histories), eager=True), "key": histories})
    rows = rows.explode("key").with_columns(pl.col("key").str.strip_chars())
    rows = rows.filter(pl.col("key").is_not_null() & (pl.col("key") != ""))
    keys = rows["key"].unique()
    table = pl.DataFrame({"key": keys, "id": recommender.item_ids(keys.to_list())})
    rows = rows.join(table, on="key", how="left", maintain_order="left")
    known = rows.filter(pl.col("id") > 0)
    sizes = np.bincount(known["row"].to_numpy(), minlength=len(histories))
    return np.split(known["id"].to_numpy(), np.cumsum(sizes)[:-1]), len(rows) - len(known)


def _profiles(recommender: Recommender, frame: pl.DataFrame) -> Profiles | None:
    encoders = {**recommender.user_encoders, **recommender.context_encoders}
    given = [name for name in encoders if name in frame.columns]
    if not given:
        return None
    features = encode_table(encoders, frame.select(given))
    blank = frame.select(pl.all_horizontal(pl.col(given).is_null())).to_series().to_numpy()
    rows = torch.from_numpy(np.where(blank, -1, np.arange(len(frame))))
    return Profiles(feature_tables(features), rows)


def named_lists(recommender: Recommender, users: pl.Series, ranking: Ranking) -> pl.DataFrame:
    """The lists of a ranking as rows of user, rank, item, title and score."""
    ids = ranking.top.item_ids.numpy()
    B, k = ids.shape
    distinct, where = np.unique(ids, return_inverse=True)
    keys = pl.Series("item", recommender.item_keys(distinct), dtype=pl.String)
    titles = pl.Series("title", recommender.item_titles(distinct), dtype=pl.String)
    places = pl.Series(where.ravel())
    return pl.DataFrame(
        {
            "user": users.gather(np.repeat(np.arange(B), k)),
            "rank": np.tile(np.arange(1, k + 1, dtype=np.int32), B),
            "item": keys.gather(places),
            "title": titles.gather(places),
            "score": ranking.top.scores.numpy().ravel(),
        }
    ).filter(pl.Series(ids.ravel() > 0))


def _column(path: Path, schema: pl.Schema, names: tuple[str, ...]) -> str:
    for name in names:
        if name in schema:
            return name
    raise ConfigError(
        f"{path} needs a column {names[0]!r} (or {', '.join(names[1:])}); "
        f"its columns are {', '.join(schema)}"
    )
