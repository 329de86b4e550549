"""Failed allocations are recognised in the messages of all libraries."""

from __future__ import annotations

import polars as pl
import pytest

from crossbatch import cli
from crossbatch.data.readers.source import reader_errors
from crossbatch.errors import DataError, out_of_memory

SAID = [
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("can't start new thread"),
    ImportError("libx.so: failed to map segment from shared object"),
    RuntimeError("std::bad_alloc"),
]


@pytest.mark.parametrize("error", SAID, ids=str)
def test_bug_little_memory_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing() -> None:
        raise error

    monkeypatch.setattr(cli, "app", failing)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    said = capsys.readouterr().err
    assert said.startswith("crossbatch: there is not enough memory; files on disk are intact")
    assert said.count("\n") == 1


def test_bug_threads_that_could_not_start_were_reported_as_a_broken_file() -> None:
    with pytest.raises(MemoryError), reader_errors("log.csv"):
        raise pl.exceptions.PanicException("could not spawn threads: ThreadPoolBuildError")
    with pytest.raises(DataError, match=r"log\.csv cannot be read"), reader_errors("log.csv"):
        raise pl.exceptions.PanicException("index out of bounds")


def test_other_errors_are_not_mistaken_for_it() -> None:
    assert not out_of_memory(RuntimeError("shapes do not fit"))
    assert not out_of_memory(ImportError("No module named 'x'"))
