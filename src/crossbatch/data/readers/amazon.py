"""Amazon reviews: 2014 (`reviews_X.json.gz`), 2018 (`X.json.gz`) and 2023 (`X.jsonl.gz`, CSV).

Metadata (`meta_X…`) of 2014 are Python literals, not JSON.  Ratings are read but not used unless
`min_rating` asks for it: every review is a positive, as in ComiRec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.data.readers.amazon_metadata import ITEM_COLUMNS, read_metadata
from crossbatch.data.readers.delimited import read_delimited, split_header
from crossbatch.data.readers.json_lines import first_object, read_json_lines
from crossbatch.data.readers.source import Source, Tally
from crossbatch.data.readers.text_blocks import first_line
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import polars as pl

    from crossbatch.data.readers.reader import ReadOptions

LAYOUTS = {
    "2014/2018": {
        "user": "reviewerID", "item": "asin", "time": "unixReviewTime", "rating": "overall",
    },
    "2023": {"user": "user_id", "item": "parent_asin", "time": "timestamp", "rating": "rating"},
}  # fmt: skip
SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".csv", ".csv.gz")


def recognises(path: Path) -> bool:
    """Tell whether a path is a review file, or a folder with exactly one, by its field names."""
    reviews = _reviews(path)
    try:
        return reviews is not None and _layout(reviews) is not None
    except DataError:
        return False


def open_source(path: Path, options: ReadOptions) -> Source:
    """Return Amazon reviews, with metadata if they stand beside them or are named."""
    reviews = _reviews(path)
    columns = _layout(reviews) if reviews is not None else None
    if reviews is None or columns is None:
        raise DataError(
            f"{path} must be an Amazon review file or a folder with exactly one: its fields are "
            f"{' or '.join(', '.join(layout.values()) for layout in LAYOUTS.values())}"
        )
    meta = options.items or (_meta(path) if path.is_dir() else None)
    chosen = options.item_columns if options.item_columns is not None else ITEM_COLUMNS
    return Source(
        format="amazon",
        files=(reviews, meta) if meta else (reviews,),
        batches=lambda tally: _batches(reviews, columns, tally),
        item_table=(lambda keys, tally: read_metadata(meta, keys, tally)) if meta else None,
        item_columns=chosen if meta else (),
        title="title" if meta else None,
    )


def _reviews(path: Path) -> Path | None:
    if path.is_file():
        return path if path.name.endswith(SUFFIXES) else None
    files = _files(path) if path.is_dir() else []
    reviews = [file for file in files if not file.name.startswith("meta_")]
    return reviews[0] if len(reviews) == 1 else None


def _meta(folder: Path) -> Path | None:
    metas = [file for file in _files(folder) if file.name.startswith("meta_")]
    if len(metas) > 1:
        raise DataError(f"{folder} holds {len(metas)} meta files: name one with --items")
    return metas[0] if metas else None


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.name.endswith(SUFFIXES))


def _layout(reviews: Path) -> dict[str, str] | None:
    """Return the columns of the edition whose fields the file has."""
    if ".csv" in reviews.name:
        fields = set(split_header(reviews, ","))
    elif first_line(reviews):
        fields = set(first_object(reviews))
    else:
        return None
    return next((layout for layout in LAYOUTS.values() if fields.issuperset(layout.values())), None)


def _batches(reviews: Path, columns: dict[str, str], tally: Tally) -> Iterator[pl.DataFrame]:
    if ".csv" in reviews.name:
        return read_delimited(reviews, columns, tally)
    return read_json_lines(reviews, columns, tally)
