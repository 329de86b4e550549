from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.data.dataset.string_table import KeyLookup, StringTable, byte_order, write_strings

texts = st.text(st.characters(codec="utf-8"), max_size=8)


@given(st.lists(texts, max_size=20))
def test_strings_come_back(strings: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_strings(Path(folder), "names", pl.Series(strings, dtype=pl.String))
        table = StringTable(Path(folder), "names")
        assert table.tolist() == [table[row] for row in range(len(table))] == strings


@pytest.mark.parametrize("bulk", [1, 10_000])
@given(
    st.sets(texts.filter(bool), min_size=1, max_size=20), st.lists(texts.filter(bool), max_size=5)
)
def test_keys_are_found_by_search_as_by_dictionary(
    bulk: int, known: set[str], others: list[str]
) -> None:
    keys = sorted(known, key=hash)
    with tempfile.TemporaryDirectory() as folder:
        write_strings(Path(folder), "keys", pl.Series(keys))
        lookup = KeyLookup(StringTable(Path(folder), "keys"), byte_order(pl.Series(keys)))
        lookup.BULK = bulk  # type: ignore[misc]
        wanted = [*keys, *others]
        expected = [keys.index(key) if key in known else -1 for key in wanted]
        np.testing.assert_array_equal(lookup.find(wanted), expected)


def test_null_is_empty_and_rows_are_checked(tmp_path: Path) -> None:
    write_strings(tmp_path, "names", pl.Series(["a", None]))
    table = StringTable(tmp_path, "names")
    assert table.take([1, 0]) == ["", "a"]
    with pytest.raises(IndexError, match=r"0\.\.1"):
        table[2]
