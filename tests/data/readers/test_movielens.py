from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import polars as pl
import pytest

from crossbatch.data import Source, open_source
from crossbatch.data.readers.source import Tally
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = "|".join("1" if n in (1, 16) else "0" for n in range(19))  # Action, Thriller
FILES = {
    "100k": {
        "u.data": "196\t242\t3\t881250949\n186\t302\t3\t891717742\n",
        "u.item": f"242|Kolya é (1996)|24-Jan-1997||x|{FLAGS}\n302|No year|||x|{FLAGS}\n",
        "u.user": "196|49|M|writer|55105\n186|39|F|executive|00000\n",
    },
    "1m": {
        "ratings.dat": "1::1193::5::978300760\n2::661::3::978302109\n",
        "movies.dat": "1193::One: the Nest (1975)::Drama\n661::Él (1996)::Animation|Musical\n",
        "users.dat": "1::F::1::10::48067\n2::M::56::16::70072-1234\n",
    },
    "csv": {
        "ratings.csv": "userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n1,29,3.5,1112484676\n",
        "movies.csv": (
            'movieId,title,genres\n2,"Jumanji, or é (1995)",Adventure|Children\n'
            "29,X,(no genres listed)\n"
        ),
    },
}
ENCODING = {"100k": "latin-1", "1m": "latin-1", "csv": "utf-8"}


@pytest.fixture(params=["folder", "zip", "zip with a folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    return request.param, tmp_path


def lay_out(place: tuple[str, Path], edition: str) -> Path:
    how, folder = place
    files = {name: text.encode(ENCODING[edition]) for name, text in FILES[edition].items()}
    if how == "folder":
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return folder
    path = folder / "ml.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"ml/{name}" if how.endswith("folder") else name, data)
    return path


def log_of(source: Source) -> list[tuple[str, ...]]:
    return pl.concat(list(source.batches(Tally()))).select("user", "item", "time").rows()


@pytest.mark.parametrize(
    ("edition", "expected"),
    [
        ("100k", [("196", "242", "881250949"), ("186", "302", "891717742")]),
        ("1m", [("1", "1193", "978300760"), ("2", "661", "978302109")]),
        ("csv", [("1", "2", "1112486027"), ("1", "29", "1112484676")]),
    ],
)
def test_ratings(place: tuple[str, Path], edition: str, expected: list[tuple[str, ...]]) -> None:
    source = open_source(lay_out(place, edition))
    assert source.format == "movielens"
    assert log_of(source) == expected


@pytest.mark.parametrize(
    ("edition", "expected"),
    [
        ("100k", [("242", "Kolya é (1996)", ["Action", "Thriller"], 1996.0),
                  ("302", "No year", ["Action", "Thriller"], None)]),
        ("1m", [("1193", "One: the Nest (1975)", ["Drama"], 1975.0),
                ("661", "Él (1996)", ["Animation", "Musical"], 1996.0)]),
        ("csv", [("2", "Jumanji, or é (1995)", ["Adventure", "Children"], 1995.0),
                 ("29", "X", [], None)]),
    ],
)  # fmt: skip
def test_movies(place: tuple[str, Path], edition: str, expected: list[tuple[object, ...]]) -> None:
    source = open_source(lay_out(place, edition))
    assert source.item_table is not None
    assert source.item_table(pl.Series([]), Tally()).rows() == expected


@pytest.mark.parametrize(("edition", "age"), [("100k", "numeric"), ("1m", "categorical")])
def test_users(place: tuple[str, Path], edition: str, age: str) -> None:
    source = open_source(lay_out(place, edition))
    assert source.user_table is not None
    table = source.user_table(pl.Series([]), Tally())
    expected = {"100k": [("196", "49", "M", "writer", "551"),
                         ("186", "39", "F", "executive", "000")],
                "1m": [("1", "1", "F", "10", "480"), ("2", "56", "M", "16", "700")]}  # fmt: skip
    assert table.select("key", "age", "gender", "occupation", "zip").rows() == expected[edition]
    assert {column.name: column.kind for column in source.user_columns}["age"] == age


def test_another_zip_is_not_movielens(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(DataError, match=r"ratings\.dat"):
        open_source(tmp_path / "x.zip", "movielens")
