from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from crossbatch.data import READERS, open_source
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_readers_are_those_of_the_manual() -> None:
    assert set(READERS) == {"table", "amazon", "movielens", "comirec", "recbole"}


def test_a_doubtful_format_is_a_question(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(ConfigError, match=r"--format {table,amazon"):
        open_source(tmp_path / "log.csv")


def test_two_fitting_formats_are_a_question(tmp_path: Path) -> None:
    (tmp_path / "x.inter").write_text("user_id:token\titem_id:token\ttimestamp:float\n")
    for part in ("train", "valid", "test"):
        (tmp_path / f"x_{part}.txt").write_text("1,2,3\n")
    with pytest.raises(ConfigError, match="comirec and recbole"):
        open_source(tmp_path)


def test_an_unknown_format_and_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="table, amazon"):
        open_source(tmp_path, "excel")
    with pytest.raises(DataError, match="does not exist"):
        open_source(tmp_path / "absent")


@pytest.mark.parametrize("name", READERS)
def test_no_reader_recognises_an_empty_folder(tmp_path: Path, name: str) -> None:
    assert not READERS[name].recognises(tmp_path)
