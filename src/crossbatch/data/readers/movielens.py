"""MovieLens as published: 100k, 1m, and the CSV editions; a folder or the zip itself."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl

from crossbatch.data.readers.source import Column, ReadOptions, Source, Tally
from crossbatch.data.readers.text_tables import check_ratio, parse_rows, read_delimited
from crossbatch.errors import DataError

RATING_COLUMNS = {"user": "user", "item": "item", "rating": "rating", "time": "time"}
GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary",
    "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi",
    "Thriller", "War", "Western",
)  # fmt: skip


class Edition(NamedTuple):
    """How one edition is laid out: its files, their separators and columns."""

    ratings: str
    separator: str
    header: tuple[str, ...]  # empty if the first line names the columns
    movies: tuple[str, str, tuple[str, ...]]
    users: tuple[str, str, tuple[str, ...]] | None
    age: str = "numeric"  # kind of the users' age


EDITIONS = {
    "100k": Edition(
        "u.data", "\t", ("user", "item", "rating", "time"),
        ("u.item", "|", ("key", "title", "released", "video", "url", *GENRES)),
        ("u.user", "|", ("key", "age", "gender", "occupation", "zip")),
    ),
    "1m": Edition(
        "ratings.dat", "::", ("user", "item", "rating", "time"),
        ("movies.dat", "::", ("key", "title", "genres")),
        ("users.dat", "::", ("key", "gender", "age", "occupation", "zip")),
        age="categorical",  # bands, not years
    ),
    "csv": Edition("ratings.csv", ",", (), ("movies.csv", ",", ("key", "title", "genres")), None),
}  # fmt: skip
ITEM_COLUMNS = (
    Column("title", "text"), Column("genres", "multi_valued"), Column("year", "numeric"),
)  # fmt: skip


def recognises(path: Path) -> bool:
    """Return whether a folder or zip holds one of the editions."""
    return _find(path) is not None


def open_source(path: Path, options: ReadOptions) -> Source:
    """Return a MovieLens edition as a source."""
    del options  # everything about these files is known
    found = _find(path)
    if found is None:
        names = ", ".join(edition.ratings for edition in EDITIONS.values())
        raise DataError(f"{path} is not MovieLens: it holds none of {names}")
    edition, members = found
    users = edition.users
    return Source(
        format="movielens",
        files=(path,) if path.is_file() else tuple(sorted(Path(name) for name in members.values())),
        batches=lambda tally: _ratings(path, edition, members, tally),
        time_unit="s",
        item_table=lambda _keys, _tally: _movies(path, edition, members),
        user_table=(lambda _keys, _tally: _users(path, edition, members)) if users else None,
        item_columns=ITEM_COLUMNS,
        user_columns=tuple(
            Column(name, edition.age if name == "age" else "categorical")
            for name in ("gender", "age", "occupation", "zip")
            if users
        ),
        title="title",
    )


def _find(path: Path) -> tuple[Edition, dict[str, str]] | None:
    """Return the edition and where its files are: full paths, or names inside the zip."""
    if path.is_dir():
        names = {file.name: str(file) for file in path.iterdir() if file.is_file()}
    elif zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.namelist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            return None
        names = {Path(name).name: name for name in members if not name.endswith("/")}
    else:
        return None
    for edition in EDITIONS.values():
        tables = (edition.movies, edition.users)
        wanted = [edition.ratings, *(table[0] for table in tables if table)]
        if all(name in names for name in wanted):
            return edition, {name: names[name] for name in wanted}
    return None


def _ratings(
    path: Path, edition: Edition, members: dict[str, str], tally: Tally
) -> Iterator[pl.DataFrame]:
    columns = RATING_COLUMNS
    if not edition.header:
        columns = {"user": "userId", "item": "movieId", "rating": "rating", "time": "timestamp"}
    with tempfile.TemporaryDirectory(prefix="crossbatch-") as folder:
        log = Path(members[edition.ratings])
        if path.is_file():  # the zip's log is unpacked to disk, not into memory
            with zipfile.ZipFile(path) as archive:
                member = _checked_member(archive, members[edition.ratings])
                log = Path(archive.extract(member, folder))
        yield from read_delimited(
            log, columns, tally, separator=edition.separator, header=edition.header or None
        )


def _movies(path: Path, edition: Edition, members: dict[str, str]) -> pl.DataFrame:
    name, separator, columns = edition.movies
    frame = _table(path, members[name], separator, columns, has_header=not edition.header)
    if "genres" not in frame.columns:
        flags = [pl.when(pl.col(genre) == "1").then(pl.lit(genre)) for genre in GENRES]
        frame = frame.with_columns(pl.concat_list(flags).list.drop_nulls().alias("genres"))
    else:
        none = pl.col("genres") == "(no genres listed)"
        split = pl.col("genres").str.split("|")
        frame = frame.with_columns(pl.when(none).then(split.list.head(0)).otherwise(split))
    year = pl.col("title").str.extract(r"\((\d{4})\)\s*$").cast(pl.Float64)
    return frame.select("key", "title", "genres", year.alias("year"))


def _users(path: Path, edition: Edition, members: dict[str, str]) -> pl.DataFrame:
    name, separator, columns = edition.users or ("", "", ())
    frame = _table(path, members[name], separator, columns, has_header=False)
    return frame.with_columns(pl.col("zip").str.slice(0, 3))  # the sorting region


def _checked_member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Return the member of this name, unless its size shows a decompression bomb."""
    member = archive.getinfo(name)
    check_ratio(name, member.file_size, member.compress_size)
    return member


def _table(
    path: Path, member: str, separator: str, columns: tuple[str, ...], *, has_header: bool
) -> pl.DataFrame:
    """Read a small table whole; the old editions are Latin-1, the CSV ones UTF-8."""
    if path.is_file():
        with zipfile.ZipFile(path) as archive:
            data = archive.read(_checked_member(archive, member))
    else:
        data = Path(member).read_bytes()
    if has_header:
        return pl.read_csv(io.BytesIO(data), infer_schema=False, new_columns=list(columns))
    return parse_rows(data.decode("latin-1").encode(), columns, Tally(), separator=separator)
