"""ComiRec's files: `X_train.txt`, `X_valid.txt`, `X_test.txt`, lines `user,item,position`.

The split they give is kept.  The folder may also hold `X_item_map.txt` (`asin,item`) and
`X_user_map.txt`, which give the keys back, and `X_item_cate.txt` (`item,category`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from crossbatch.data.readers.source import Column, ReadOptions, Source, Tally
from crossbatch.data.readers.text_tables import read_delimited, read_whole
from crossbatch.errors import DataError

PARTS = ("train", "valid", "test")
LINE = ("user", "item", "position")


def recognises(path: Path) -> bool:
    """Return whether a folder holds one set of the three files."""
    return path.is_dir() and len(_stems(path)) == 1


def open_source(path: Path, options: ReadOptions) -> Source:
    """Return ComiRec's files as a source that carries its split."""
    del options
    stems = _stems(path) if path.is_dir() else []
    if len(stems) != 1:
        raise DataError(
            f"{path} must be a folder with one set of X_train.txt, X_valid.txt and X_test.txt, "
            f"got {len(stems)} sets"
        )
    stem = stems[0]
    logs = tuple(path / f"{stem}_{part}.txt" for part in PARTS)
    categories = path / f"{stem}_item_cate.txt"
    maps = {kind: _map(path / f"{stem}_{kind}_map.txt", ("key", kind)) for kind in ("user", "item")}
    has_categories = categories.is_file()
    return Source(
        format="comirec",
        files=(*logs, categories) if has_categories else logs,
        batches=lambda tally: _batches(logs, maps, tally),
        time_unit="order",
        item_table=(lambda _keys, _tally: _categories(categories, maps["item"]))
        if has_categories
        else None,
        item_columns=(Column("category", "categorical"),) if has_categories else (),
        # the files are filtered already, with positions for times
        defaults={"min_item_count": 1, "min_user_count": 1, "ties": "stable"},
    )


def _stems(path: Path) -> list[str]:
    found = sorted(file.name.removesuffix("_train.txt") for file in path.glob("*_train.txt"))
    return [
        stem for stem in found if all((path / f"{stem}_{part}.txt").is_file() for part in PARTS)
    ]


def _batches(
    logs: tuple[Path, ...], maps: dict[str, pl.DataFrame | None], tally: Tally
) -> Iterator[pl.DataFrame]:
    columns = {"user": "user", "item": "item", "time": "position"}
    for split, path in enumerate(logs):
        for frame in read_delimited(path, columns, tally, header=LINE):
            for kind, table in maps.items():
                frame = _with_keys(frame, table, kind)
            yield frame.with_columns(pl.lit(split, dtype=pl.Int8).alias("split"))


def _with_keys(frame: pl.DataFrame, table: pl.DataFrame | None, kind: str) -> pl.DataFrame:
    """Put the original keys in place of ComiRec's numbers, where the map knows them."""
    if table is None:
        return frame
    joined = frame.join(table, on=kind, how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("key", kind).alias(kind)).drop("key")


def _categories(path: Path, items: pl.DataFrame | None) -> pl.DataFrame:
    frame = read_whole(
        path, {"item": "item", "category": "category"}, Tally(), header=("item", "category")
    )
    return _with_keys(frame, items, "item").rename({"item": "key"})


def _map(path: Path, header: tuple[str, str]) -> pl.DataFrame | None:
    if not path.is_file():
        return None
    columns = {name: name for name in header}
    return read_whole(path, columns, Tally(), header=header).unique(header[1])
