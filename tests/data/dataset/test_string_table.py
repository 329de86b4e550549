from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.data.dataset.string_table import StringTable, write_strings

texts = st.text(st.characters(codec="utf-8"), max_size=8)


@given(st.lists(texts, max_size=20))
def test_strings_come_back(strings: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_strings(Path(folder), "names", pl.Series(strings, dtype=pl.String))
        table = StringTable(Path(folder), "names")
        assert table.tolist() == [table[row] for row in range(len(table))] == strings


def test_null_is_empty_and_rows_are_checked(tmp_path: Path) -> None:
    write_strings(tmp_path, "names", pl.Series(["a", None]))
    table = StringTable(tmp_path, "names")
    assert table.take([1, 0]) == ["", "a"]
    with pytest.raises(IndexError, match=r"0\.\.1"):
        table[2]
