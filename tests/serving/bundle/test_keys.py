"""Keys to rows against a plain dictionary."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crossbatch.serving.bundle.keys as keys_module
from crossbatch.data.dataset.string_table import StringTable, write_strings
from crossbatch.serving.bundle.keys import KeyIndex, key_hashes, sorted_hashes

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def index_of(folder, keys):
    write_strings(folder, "keys", pl.Series(["", *keys], dtype=pl.String))
    return KeyIndex(StringTable(folder, "keys"), *sorted_hashes(["", *keys]))


@settings(max_examples=60, deadline=None)
@given(keys=st.lists(TEXT, unique=True, max_size=30), others=st.lists(TEXT, max_size=10))
def test_finds_what_a_dictionary_finds(tmp_path_factory, keys, others):
    index = index_of(tmp_path_factory.mktemp("keys"), keys)
    rows = {key: row for row, key in enumerate(keys, start=1)}
    wanted = [*others, *keys, ""]
    assert index.find(wanted).tolist() == [rows.get(key, 0) for key in wanted]


def test_keys_that_share_a_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(
        keys_module,
        "key_hashes",
        lambda keys: np.array([len(key) for key in keys], dtype=np.uint64),
    )
    index = index_of(tmp_path, ["aa", "bb", "c", "dd"])
    assert index.find(["dd", "aa", "bb", "c", "xx", "longer"]).tolist() == [4, 1, 2, 3, 0, 0]


def test_hashes_are_the_same_for_ever():
    """Stored in bundles: a change would orphan them all.  By `printf i17 | b2sum -l 64`."""
    digests = ["e4a6a0577479b2b4", "f87248538e481ce6", "dc5b03fcf1dec6ca"]
    expected = [int.from_bytes(bytes.fromhex(digest), "little") for digest in digests]
    assert key_hashes(["", "i17", "Ä"]).tolist() == expected


def test_strings_that_are_no_text_are_unknown(tmp_path):
    index = index_of(tmp_path, ["a"])
    assert index.find(["\ud800", "a"]).tolist() == [0, 1]


def test_no_keys_at_all(tmp_path):
    assert index_of(tmp_path, []).find(["a"]).tolist() == [0]
    assert index_of(tmp_path, ["a"]).find([]).shape == (0,)


@pytest.mark.parametrize("key", ["", "padding"])
def test_the_padding_row_is_never_found(tmp_path, key):
    assert index_of(tmp_path, ["a"]).find([key]).tolist() == [0]
