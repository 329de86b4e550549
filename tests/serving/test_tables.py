"""Tables written in pieces: one file, complete or absent."""

import polars as pl
import pytest

import crossbatch.serving.tables as module
from crossbatch.errors import ConfigError, DataError
from crossbatch.serving.tables import table_file


@pytest.mark.parametrize("part_rows", [1, 3, 1000])
def test_pieces_become_one_file_in_order(tmp_path, monkeypatch, part_rows):
    monkeypatch.setattr(module, "PART_ROWS", part_rows)
    out = tmp_path / "t.parquet"
    with table_file(out, overwrite=False) as add:
        for start in range(0, 10, 2):
            add(pl.DataFrame({"x": [start, start + 1]}))
        assert not out.exists()
    assert pl.read_parquet(out)["x"].to_list() == list(range(10))
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_a_failure_leaves_what_was_there(tmp_path):
    out = tmp_path / "t.parquet"
    out.write_text("before")

    def interrupted():
        with table_file(out, overwrite=True) as add:
            add(pl.DataFrame({"x": [1]}))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert out.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_mistakes_are_named(tmp_path):
    with (
        pytest.raises(DataError, match="nothing to write"),
        table_file(tmp_path / "t.csv", overwrite=False),
    ):
        pass
    with pytest.raises(ConfigError, match=r"must end in \.parquet, \.csv, \.jsonl, got 't'"):
        table_file(tmp_path / "t", overwrite=False).__enter__()
    assert not list(tmp_path.iterdir())
