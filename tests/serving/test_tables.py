"""Tables written in pieces: one file, complete or absent."""

import csv
import subprocess
import sys

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


def test_bug_what_a_killed_writer_left_stayed_for_ever(tmp_path):
    """The next one that writes the same file removes it, unless its process still writes."""
    out = tmp_path / "t.csv"
    program = (
        "import os, sys, pathlib, polars as pl\n"
        "from crossbatch.serving.tables import table_file\n"
        "with table_file(pathlib.Path(sys.argv[1]), overwrite=False) as add:\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, out], check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    with table_file(out, overwrite=False) as add:
        add(pl.DataFrame({"x": [1]}))
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_spreadsheets_compute_nothing_of_a_csv(tmp_path):
    cells = ["=1+1", "+cmd", "-2+3|x", "@sum", "\tx", "-5", "+1.5", "a=b", ""]
    for out in (tmp_path / "t.csv", tmp_path / "t.parquet"):
        with table_file(out, overwrite=False) as add:
            add(pl.DataFrame({"item": cells, "score": [-1.0] * len(cells)}))
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["item"] for row in rows] == ["'" + cell for cell in cells[:5]] + cells[5:]
    assert {row["score"] for row in rows} == {"-1.0"}
    assert pl.read_parquet(tmp_path / "t.parquet")["item"].to_list() == cells
