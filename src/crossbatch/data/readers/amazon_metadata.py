"""Amazon metadata: only the lines of items that were kept are parsed at all."""

from __future__ import annotations

import ast
import html
import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl

from crossbatch.data.readers.source import Column
from crossbatch.data.readers.text_blocks import line_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.data.readers.source import Tally

ITEM_COLUMNS = (
    Column("title", "text"),
    Column("category", "categorical"),
    Column("categories", "multi_valued"),
    Column("brand", "categorical"),
    Column("price", "numeric"),
)
SCHEMA: list[tuple[str, pl.DataType]] = [
    ("key", pl.String()),
    ("title", pl.String()),
    ("category", pl.String()),
    ("categories", pl.List(pl.String())),
    ("brand", pl.String()),
    ("price", pl.Float64()),
]
# parent_asin where there is one (2023): that is what the reviews go by
_KEYS = tuple(
    re.compile(rb"""["']%s["']\s*:\s*["']([^"']+)["']""" % name)
    for name in (b"parent_asin", b"asin")
)
MAX_LINE = 1 << 20  # bytes: a literal takes some two hundred times its length to parse
_NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def read_metadata(path: Path, keys: pl.Series, tally: Tally) -> pl.DataFrame:
    """Return title, leaf category, category path, brand and price of the wanted items.

    Args:
        path: A `meta_X` file of any edition.
        keys: The wanted items.
        tally: Counts the wanted lines that cannot be parsed.
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
        tally.unreadable("metadata line cannot be parsed", 1, repr(line))
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
