"""Amazon reviews: 2014 (`reviews_X.json.gz`), 2018 (`X.json.gz`) and 2023 (`X.jsonl.gz`, CSV).

Metadata (`meta_X…`) of 2014 are Python literals, not JSON.  Ratings are read but not used unless
`min_rating` asks for it: every review is a positive, as in ComiRec.
"""

from __future__ import annotations

import ast
import html
import json
import re
from pathlib import Path
from typing import Any

import polars as pl

from crossbatch.data.readers.source import Column, ReadOptions, Source, Tally
from crossbatch.data.readers.text_tables import (
    first_line,
    first_object,
    line_blocks,
    read_delimited,
    read_json_lines,
    split_header,
)
from crossbatch.errors import DataError

LAYOUTS = {
    "2014/2018": {
        "user": "reviewerID", "item": "asin", "time": "unixReviewTime", "rating": "overall",
    },
    "2023": {"user": "user_id", "item": "parent_asin", "time": "timestamp", "rating": "rating"},
}  # fmt: skip
ITEM_COLUMNS = (
    Column("title", "text"),
    Column("category", "categorical"),
    Column("categories", "multi_valued"),
    Column("brand", "categorical"),
    Column("price", "numeric"),
)
SCHEMA = {
    **dict.fromkeys(("key", "title", "category"), pl.String()),
    "categories": pl.List(pl.String()),
    "brand": pl.String(),
    "price": pl.Float64(),
}
# reviews of 2023 name items by parent_asin
_KEYS = tuple(
    re.compile(rb"""["']%s["']\s*:\s*["']([^"']+)["']""" % name)
    for name in (b"parent_asin", b"asin")
)
MAX_LINE = 1 << 20  # bytes: parsing a literal takes about 200 times its length in memory
_NUMBER = re.compile(r"\d[\d,]*\.?\d*")
SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".csv", ".csv.gz")


def recognises(path: Path) -> bool:
    """Return whether a path is a review file, or a folder with exactly one, by its field names."""
    reviews = _reviews(path)
    try:
        return reviews is not None and _layout(reviews) is not None
    except DataError:
        return False


def open_source(path: Path, options: ReadOptions) -> Source:
    """Return Amazon reviews, with metadata from the same folder or as named by the options."""
    reviews = _reviews(path)
    columns = _layout(reviews) if reviews is not None else None
    if reviews is None or columns is None:
        raise DataError(
            f"{path} must be an Amazon review file or a folder with exactly one: its fields are "
            f"{' or '.join(', '.join(layout.values()) for layout in LAYOUTS.values())}"
        )
    read = read_delimited if ".csv" in reviews.name else read_json_lines
    beside = _meta(path) if path.is_dir() else None
    meta = Path(options.items) if options.items else beside
    chosen = options.item_columns if options.item_columns is not None else ITEM_COLUMNS
    return Source(
        format="amazon",
        files=(reviews, meta) if meta else (reviews,),
        content_files=(meta,) if meta else (),
        batches=lambda tally: read(reviews, columns, tally),
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


def read_metadata(path: Path, keys: pl.Series, tally: Tally) -> pl.DataFrame:
    """Return title, leaf category, category path, brand and price of the items with these keys.

    The tally counts their lines that cannot be parsed.
    """
    wanted = {key.encode() for key in keys.to_list()}
    rows = []
    for block in line_blocks(path):
        for line in block.splitlines():
            key = next((found.group(1) for key in _KEYS if (found := key.search(line))), b"")
            if key in wanted and (entry := _parse(line, tally)) is not None:
                rows.append({"key": key.decode(), **_content(entry)})
    return pl.DataFrame(rows, schema=SCHEMA)


def _parse(line: bytes, tally: Tally) -> dict[str, Any] | None:
    try:
        if len(line) > MAX_LINE:
            raise ValueError("longer than any item's description")
        text = line.decode("utf-8")
        entry = json.loads(text) if text.startswith('{"') else ast.literal_eval(text)
        json.dumps(entry, ensure_ascii=False).encode("utf-8")  # no lone surrogates
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        tally.unreadable("metadata line cannot be parsed", repr(line))
        return None
    return entry if isinstance(entry, dict) else None


def _content(entry: dict[str, Any]) -> dict[str, Any]:
    path = _category_path(entry)
    return {
        "title": _plain(entry.get("title")),
        "category": path[-1] if path else None,
        "categories": path or None,
        "brand": _plain(entry.get("brand") or entry.get("store")),
        "price": _price(entry.get("price")),
    }


def _category_path(entry: dict[str, Any]) -> list[str]:
    """Return the first category path: 2014 has lists of paths, later editions one path."""
    path = entry.get("categories") or entry.get("category") or []
    if path and isinstance(path, list) and isinstance(path[0], list):
        path = path[0]
    labels = path if isinstance(path, list) else [path]
    return [plain for label in labels if (plain := _plain(label))]


def _plain(value: object) -> str | None:
    text = html.unescape(value).strip() if isinstance(value, str) else ""
    return text or None


def _price(value: object) -> float | None:
    """Return the price as a number; of a range ("$5 - $9") the lower end."""
    found = _NUMBER.search(str(value)) if value is not None else None
    return float(found.group().replace(",", "")) if found else None
