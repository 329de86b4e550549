"""Keys to rows against a plain dictionary."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.data.dataset import string_table
from crossbatch.data.dataset.string_table import (
    KeyIndex,
    StringTable,
    key_hashes,
    sorted_hashes,
    write_strings,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def index_of(folder, keys):
    write_strings(folder, "keys", pl.Series(["", *keys], dtype=pl.String))
    return KeyIndex(StringTable(folder, "keys"), *sorted_hashes(["", *keys], first=1))


@settings(max_examples=60, deadline=None)
@given(keys=st.lists(TEXT, unique=True, max_size=30), others=st.lists(TEXT, max_size=10))
def test_finds_what_a_dictionary_finds(tmp_path_factory, keys, others):
    index = index_of(tmp_path_factory.mktemp("keys"), keys)
    rows = {key: row for row, key in enumerate(keys, start=1)}
    wanted = [*others, *keys, ""]
    assert index.find(wanted).tolist() == [rows.get(key, -1) for key in wanted]


def test_keys_that_share_a_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(
        string_table,
        "key_hashes",
        lambda keys: np.array([len(key) for key in keys], dtype=np.uint64),
    )
    index = index_of(tmp_path, ["aa", "bb", "c", "dd"])
    assert index.find(["dd", "aa", "bb", "c", "xx", "longer"]).tolist() == [4, 1, 2, 3, -1, -1]


def test_hashes_are_always_the_same():
    """Bundles store them.  Computed by `printf i17 | b2sum -l 64`."""
    digests = ["e4a6a0577479b2b4", "f87248538e481ce6", "dc5b03fcf1dec6ca"]
    expected = [int.from_bytes(bytes.fromhex(digest), "little") for digest in digests]
    assert key_hashes(["", "i17", "Ä"]).tolist() == expected


def test_strings_that_are_no_text_are_unknown(tmp_path):
    index = index_of(tmp_path, ["a"])
    assert index.find(["\ud800", "a"]).tolist() == [-1, 1]


def test_no_keys_at_all(tmp_path):
    assert index_of(tmp_path, []).find(["a"]).tolist() == [-1]
    assert index_of(tmp_path, ["a"]).find([]).shape == (0,)


@pytest.mark.parametrize("key", ["", "padding"])
def test_the_padding_row_is_never_found(tmp_path, key):
    assert index_of(tmp_path, ["a"]).find([key]).tolist() == [-1]


def test_rows_from_zero_where_there_is_no_padding(tmp_path):
    write_strings(tmp_path, "keys", pl.Series(["b", "a"]))
    index = KeyIndex(StringTable(tmp_path, "keys"), *sorted_hashes(["b", "a"]))
    assert index.find(["a", "b", "c"]).tolist() == [1, 0, -1]
    assert index.covers(first=0)
    assert not index.covers(first=1)


def test_a_full_cache_starts_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(string_table, "MAX_CACHED", 3)
    keys = [f"k{number}" for number in range(10)]
    index = index_of(tmp_path, keys)
    for wanted in (keys[:2], keys, keys[3:5], ["x", *keys]):
        assert index.find(wanted).tolist() == [
            keys.index(key) + 1 if key in keys else -1 for key in wanted
        ]
