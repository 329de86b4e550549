"""What is missing for Spark is said in one sentence, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

from crossbatch.data import ReadOptions, open_source, prepare
from crossbatch.data.prepare import spark_engine
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"user": ["u"] * 9, "item": ["i"] * 9, "time": range(9)}).write_parquet(path)
    return path


def refused(log: Path, message: str, options: ReadOptions | None = None) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        prepare(open_source(log, "table", options), log.parent / "out", engine="spark")
    assert "\n" not in str(raised.value)
    assert [path.name for path in log.parent.iterdir()] == ["log.parquet"]


@pytest.mark.parametrize("package", ["pyspark", "pandas", "pyarrow"])
def test_a_missing_package(log: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        spark_engine, "find_spec", lambda name: None if name == package else object()
    )
    refused(log, rf"needs {package}, which is not installed: pip install 'crossbatch\[spark\]'")


def test_missing_java(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_engine, "find_spec", lambda _name: object())
    monkeypatch.setenv("PATH", str(log.parent))
    for name in ("JAVA_HOME", spark_engine.SUBMITTED):
        monkeypatch.delenv(name, raising=False)
    refused(log, "needs Java 17 or newer, and no java was found: install a JRE")


def test_a_log_whose_order_is_its_time(log: Path) -> None:
    refused(
        log, "without parts that can be read apart: use --engine polars", ReadOptions(time="none")
    )


def test_an_unknown_engine(log: Path) -> None:
    with pytest.raises(ConfigError, match="engine must be one of polars, spark, got 'dask'"):
        prepare(open_source(log), log.parent / "out", engine="dask")
