"""Small logs with known answers, and the way to the real data where there is some."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import settings

from crossbatch.data import Column, Dataset, PrepareOptions, Source, open_dataset, prepare

# a shared machine may pause for longer than any deadline
settings.register_profile("data", deadline=None)
settings.load_profile("data")

Rows = Sequence[tuple[str, str, int]]


def source_of(rows: Rows, batch: int = 1_000, **more: Any) -> Source:
    """A source of (user, item, seconds) in the given order."""

    def batches(_tally: object) -> Iterator[pl.DataFrame]:
        for first in range(0, len(rows), batch):
            part = rows[first : first + batch]
            yield pl.DataFrame(part, schema=["user", "item", "time"], orient="row")

    return Source(format="test", files=(), batches=batches, time_unit="s", **more)


def table_of(rows: list[dict[str, Any]]) -> Callable[[object, object], pl.DataFrame]:
    return lambda _keys, _tally: pl.DataFrame(rows)


@pytest.fixture(scope="session", name="source_of")
def source_of_fixture() -> Callable[..., Source]:
    return source_of


@pytest.fixture(scope="session")
def make_dataset(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Dataset]:
    """Prepare rows, or a source, with loose filters unless told otherwise, and open the result."""

    def make(rows: Rows | Source, **options: Any) -> Dataset:
        path = tmp_path_factory.mktemp("made") / "dataset"
        source = rows if isinstance(rows, Source) else source_of(rows)
        loose = {"min_item_count": 1, "min_user_count": 1}
        prepare(source, path, PrepareOptions(**{**loose, **options}))
        return open_dataset(path)

    return make


@pytest.fixture(scope="session")
def sequences_of() -> Callable[[Dataset], dict[str, list[str]]]:
    """Every user's item keys in order, read through the public arrays."""

    def read(dataset: Dataset) -> dict[str, list[str]]:
        keys, offsets = dataset.user_keys(range(dataset.num_users)), dataset.offsets
        return {
            key: dataset.item_keys(dataset.items[offsets[row] : offsets[row + 1]])
            for row, key in enumerate(keys)
        }

    return read


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; the test is skipped where it is absent."""
    default = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("CROSSBATCH_DATA", default))
    if not folder.is_dir():
        pytest.skip("no real data here: set CROSSBATCH_DATA to their folder")
    return folder


@pytest.fixture
def content() -> dict[str, Any]:
    """Tables of two items and columns of each kind, as arguments of `source_of`."""
    items = [
        {"key": "a", "title": "Red Fox", "genre": "x", "tags": ["p", "q"], "price": 1.0},
        {"key": "b", "title": None, "genre": None, "tags": None, "price": None},
        {"key": "c", "title": "red hen", "genre": "y", "tags": ["q"], "price": 3.0},
    ]
    columns = (
        Column("title", "text"),
        Column("genre", "categorical"),
        Column("tags", "multi_valued"),
        Column("price", "numeric"),
    )
    return {"item_table": table_of(items), "item_columns": columns, "title": "title"}
