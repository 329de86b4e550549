"""Logs of every format, whole ones and ones that mean harm."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Files = dict[str, bytes]
DEEP = 100_000

PAIRS = [(user, item) for user in range(20) for item in range(6)]
NOON = 1_400_000_000


def csv(header: str, line: str) -> bytes:
    rows = [line.format(u=user, i=item, t=NOON + item) for user, item in PAIRS]
    return "\n".join([header, *rows] if header else rows).encode() + b"\n"


def lines(**names: str) -> bytes:
    values = [{"u": f"u{user}", "i": f"i{item}", "t": NOON + item} for user, item in PAIRS]
    rows = [{name: value[key] for name, key in names.items()} for value in values]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def parquet() -> bytes:
    buffer = io.BytesIO()
    users, items = zip(*PAIRS, strict=True)
    columns = {"user": users, "item": items, "time": [NOON + item for item in items]}
    pl.DataFrame(columns).write_parquet(buffer)
    return buffer.getvalue()


def zipped(members: Mapping[str, bytes], level: int = 6) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


CSV = csv("user,item,time", "u{u},i{i},{t}")
JSONL = lines(user="u", item="i", time="t")
REVIEWS = lines(reviewerID="u", asin="i", unixReviewTime="t", overall="t")
META = b"{'asin': 'i1', 'title': 'x', 'categories': [['a', 'b']], 'price': 3.5}\n"
MOVIELENS: Files = {
    "ml/ratings.dat": csv("", "{u}::{i}::5::{t}"),
    "ml/movies.dat": b"".join(b"%d::Film %d (1990)::Drama\n" % (i, i) for i in range(6)),
    "ml/users.dat": b"".join(b"%d::M::25::3::12345\n" % u for u in range(20)),
}
RATINGS = csv("userId,movieId,rating,timestamp", "{u},{i},5,{t}")
INTER = csv("user_id:token\titem_id:token\ttimestamp:float", "u{u}\ti{i}\t{t}")
COMIREC: Files = {
    f"x_{part}.txt": b"".join(b"%d,%d,%d\n" % (u, i, i) for u in users for i in range(1, 7))
    for part, users in (("train", range(9)), ("valid", range(9, 12)), ("test", range(12, 15)))
}

# A whole source of each format, as the files of a folder; a single file is passed by itself.
WHOLE: dict[str, tuple[str, Files]] = {
    "csv": ("table", {"log.csv": CSV}),
    "json lines": ("table", {"log.jsonl": JSONL}),
    "parquet": ("table", {"log.parquet": parquet()}),
    "table with items": (
        "table",
        {"interactions.csv": CSV, "items.csv": b'item,title,price\ni1,"a, b",3\ni2,c,\n'},
    ),
    "amazon": ("amazon", {"reviews_X.json": REVIEWS, "meta_X.json": META}),
    "movielens zip": ("movielens", {"ml.zip": zipped(MOVIELENS)}),
    "comirec": (
        "comirec",
        COMIREC | {"x_item_map.txt": b"A1,1\nA2,2\n", "x_item_cate.txt": b"1,5\n2,6\n"},
    ),
    "recbole": (
        "recbole",
        {"x.inter": INTER, "x.item": b"item_id:token\tv:float_seq\ni1\t1 2\ni2\t3 4\n"},
    ),
}

# Every one of these once ended in a traceback, in a full memory or in a wrong number.
BUGS: dict[str, tuple[str, Files]] = {
    "deep_json_in_the_first_line": ("table", {"log.jsonl": b"[" * DEEP + b"\n"}),
    "deep_json_in_a_later_line": ("table", {"log.jsonl": JSONL + b'{"user":' + b"[" * DEEP}),
    "deep_json_in_content": (
        "table",
        {"interactions.csv": CSV, "items.jsonl": b'{"item":' + b"[" * DEEP + b"]" * DEEP + b"}\n"},
    ),
    "csv_field_beyond_pythons_limit": (
        "table",
        {"log.csv": CSV + b"u," + b"x" * 200_000 + b",1,2,3\n"},
    ),
    "csv_header_beyond_pythons_limit": ("table", {"log.csv": b"x" * 200_000 + b",user\n"}),
    "csv_header_with_one_name_twice": ("table", {"log.csv": b"user,item,time,item\na,b,1,c\n"}),
    "csv_with_old_macintosh_line_ends": ("table", {"log.csv": CSV.replace(b"\n", b"\r")}),
    "content_with_too_many_fields": (
        "table",
        {"interactions.csv": CSV, "items.csv": b"item,title\ni1,a,b,c\n"},
    ),
    "content_that_is_not_utf8": (
        "table",
        {"interactions.csv": CSV, "items.csv": b"item,title\ni1,\xff\n"},
    ),
    "content_with_an_open_quote": (
        "table",
        {"interactions.csv": CSV, "items.csv": b'item,title\ni1,"a\n'},
    ),
    "titles_that_are_lists": (
        "table",
        {"interactions.csv": CSV, "items.jsonl": b'{"item":"i1","title":["a"]}\n'},
    ),
    "zip_with_a_broken_directory": (
        "movielens",
        {"ml.zip": zipped(MOVIELENS).replace(b"PK\x01\x02", b"PK\x01\x03")},
    ),
    "zip_with_a_broken_member": (
        "movielens",
        {"ml.zip": zipped(MOVIELENS, 0).replace(b"1::1::5", b"1::1::4", 1)},
    ),
    "movielens_movies_with_other_columns": (
        "movielens",
        {"ml.zip": zipped({"ratings.csv": RATINGS, "movies.csv": b"a,b\n1,2\n"})},
    ),
    "movielens_movies_with_ragged_rows": (
        "movielens",
        {"ml.zip": zipped({"ratings.csv": RATINGS, "movies.csv": b"a,b,c\n1,2,3,4\n"})},
    ),
    "amazon_categories_that_are_a_table": (
        "amazon",
        {"reviews_X.json": REVIEWS, "meta_X.json": b"{'asin': 'i1', 'categories': {'a': 1}}\n"},
    ),
    "amazon_categories_that_are_a_number": (
        "amazon",
        {"reviews_X.json": REVIEWS, "meta_X.json": b"{'asin': 'i1', 'categories': 7}\n"},
    ),
    "amazon_literal_with_an_unhashable_key": (
        "amazon",
        {"reviews_X.json": REVIEWS, "meta_X.json": b"{'asin': 'i1', 'title': {{}: 1}}\n"},
    ),
    "amazon_title_with_a_lone_surrogate": (
        "amazon",
        {"reviews_X.json": REVIEWS, "meta_X.json": b"{'asin': 'i1', 'title': '\\ud800'}\n"},
    ),
    "comirec_with_an_empty_category_file": ("comirec", COMIREC | {"x_item_cate.txt": b""}),
    "comirec_with_an_empty_map": ("comirec", COMIREC | {"x_item_map.txt": b""}),
    "recbole_items_without_rows": (
        "recbole",
        {"x.inter": INTER, "x.item": b"item_id:token\tname:token\n"},
    ),
    "recbole_items_without_their_key": (
        "recbole",
        {"x.inter": INTER, "x.item": b"name:token\na\n"},
    ),
    "recbole_vectors_without_numbers": (
        "recbole",
        {"x.inter": INTER, "x.item": b"item_id:token\tv:float_seq\ni1\tx y\n"},
    ),
    "vectors_beyond_half_precision": (
        "recbole",
        {"x.inter": INTER, "x.item": b"item_id:token\tv:float_seq\ni1\t1e9 2\n"},
    ),
}


def write(folder: Path, files: Files) -> Path:
    """Write a source and return what to pass to `open_source`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / next(iter(files)) if len(files) == 1 else folder
