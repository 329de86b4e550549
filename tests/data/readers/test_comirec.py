from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

from crossbatch.data import PrepareOptions, open_dataset, open_source, prepare
from crossbatch.data.readers.source import Tally
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"book_{name}.txt").write_text(text)
    return folder


def lines(users: range) -> str:
    return "".join(
        f"{user},{1 + (user + place) % 7},{place}\n" for user in users for place in range(6)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(
        tmp_path, train=lines(range(8)), valid=lines(range(8, 9)), test=lines(range(9, 11))
    )


def test_the_given_split_and_order_are_kept(folder: Path) -> None:
    source = open_source(folder)
    assert source.format == "comirec"
    prepare(source, folder / "out", PrepareOptions.merged(source.defaults, {}))
    dataset = open_dataset(folder / "out")
    assert dataset.user_keys(range(11)) == [str(user) for user in range(11)]
    counts = dataset.manifest["counts"]
    assert (counts["train_users"], counts["valid_users"], counts["test_users"]) == (8, 1, 2)
    assert dataset.item_keys(dataset.items[:6]) == ["1", "2", "3", "4", "5", "6"]


def test_maps_give_the_keys_back_and_categories_become_a_feature(folder: Path) -> None:
    write(
        folder,
        item_map="".join(f"ASIN{n},{n}\n" for n in range(1, 8)),
        user_map="".join(f"USER{n},{n}\n" for n in range(11)),
        item_cate="".join(f"{n},{n % 2 + 1}\n" for n in range(1, 8)),
    )
    source = open_source(folder)
    first = next(iter(source.batches(Tally())))
    assert first.row(0, named=True) == {"user": "USER0", "item": "ASIN1", "time": "0", "split": 0}
    assert source.item_table is not None
    table = source.item_table(pl.Series([]), Tally())
    assert table.filter(pl.col("key") == "ASIN3")["category"].to_list() == ["2"]


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write(tmp_path, train=lines(range(3)))
    with pytest.raises(DataError, match=r"X_valid\.txt"):
        open_source(tmp_path, "comirec")
