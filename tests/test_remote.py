"""Datasets, logs and bundles in object stores: fsspec's in memory, and S3 over HTTP."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from crossbatch import cache as local_cache
from crossbatch.cli import app
from crossbatch.data import PrepareOptions, ReadOptions, append, open_dataset, open_source, prepare
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import atomic_file, atomic_folder, check_target, files_below
from crossbatch.remote import is_url, local_path, remote_folder

if TYPE_CHECKING:
    from pathlib import Path

SMALL = PrepareOptions(min_item_count=1, min_user_count=1, split="leave_last_out", growing=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(local_cache.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def log(days: range) -> pl.DataFrame:
    rng = np.random.default_rng(days.start)
    size = 40 * len(days)
    return pl.DataFrame(
        {
            "user": [f"u{n}" for n in rng.integers(0, 8, size)],
            "item": [f"i{n}" for n in rng.integers(0, 12, size)],
            "time": [1_600_000_000 + 86_400 * days.start + 60 * n for n in range(size)],
        }
    )


def put_log(store: Any, place: str, days: range) -> None:
    for day in days:
        with store.open(f"{place}/day={day}/part-0.parquet", "wb") as file:
            log(range(day, day + 1)).write_parquet(file)


def test_which_paths_are_urls(tmp_path: Path) -> None:
    from pathlib import Path

    for url in ("s3://b/x", "gs://b", "hf://datasets/a/b", Path("s3://b/x")):
        assert is_url(url)
    for path in ("data", "/data", "C:/data", "a:b", Path("x/s3:/b"), "s3:", "day=1/*.csv"):
        assert not is_url(path)
    assert local_path(tmp_path) == tmp_path


def test_a_log_becomes_a_dataset_elsewhere(memory: Any, tmp_path: Path) -> None:
    """From a pattern of a store to a dataset in it, equal to that of the same files on disk."""
    put_log(memory, "lake/clicks", range(3))
    with memory.open("lake/items.csv", "w") as file:
        file.write("item,genre\n" + "".join(f"i{n},g{n % 3}\n" for n in range(12)))
    memory.get("/lake", str(tmp_path / "lake"), recursive=True)
    for pattern in ("clicks/day=*/*.parquet", "clicks"):
        made = []
        for root, out in (("memory://lake", "memory://made/shop"), (tmp_path / "lake", tmp_path)):
            reading = ReadOptions(items=f"{root}/items.csv")
            target = out if root == "memory://lake" else out / "shop"
            source = open_source(f"{root}/{pattern}", "table", reading)
            made.append(prepare(source, target, SMALL, overwrite=True)["checksum"])
        assert made[0] == made[1]
    dataset = open_dataset("memory://made/shop")
    dataset.verify()
    assert dataset.manifest["checksum"] == made[1]
    assert "genre" in dataset.item_features


def test_days_are_added_in_place(memory: Any) -> None:
    put_log(memory, "lake", range(4))
    url = "memory://shop"
    prepare(open_source("memory://lake/day=[012]/*.parquet", "table"), url, SMALL)
    fresh = open_source("memory://lake/day=3/*.parquet", "table")
    first = append(fresh, url, url, overwrite=True)
    assert first["counts"]["interactions"] == 160
    assert open_dataset(url).manifest["checksum"] == first["checksum"]
    assert append(fresh, url, url, overwrite=True) == first  # the same command again


def test_a_copy_is_fetched_once_and_again_when_it_changes(
    memory: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with atomic_folder("memory://d") as work:  # type: ignore[arg-type]
        (work / "sub").mkdir()
        (work / "sub/x.bin").write_bytes(b"one")
        write_manifest(work)
    first = local_path("memory://d/")
    assert (first / "sub/x.bin").read_bytes() == b"one"
    fetched: list[str] = []
    get = type(memory).get_file

    def counted(self: Any, source: str, *rest: Any, **more: Any) -> None:
        fetched.append(source)
        get(self, source, *rest, **more)

    monkeypatch.setattr(type(memory), "get_file", counted)
    assert local_path("memory://d") == first
    assert fetched == []
    with remote_folder("memory://d", overwrite=True) as work:
        (work / "y.bin").write_bytes(b"two")
        write_manifest(work)
    second = local_path("memory://d")
    assert second != first
    assert set(files_below(second)) == {"manifest.json", "y.bin"}
    assert fetched == ["/d/y.bin"]
    assert not memory.exists("/d/sub/x.bin")  # of the folder before
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def write_manifest(folder: Path) -> None:
    from crossbatch.data.dataset.manifest import write_manifest as write

    write(folder, {})


def test_damage_in_the_store_is_found(memory: Any, cache: Path) -> None:
    with remote_folder("memory://d") as work:
        (work / "x.bin").write_bytes(b"one")
        write_manifest(work)
    memory.pipe("/d/x.bin", b"two")
    with pytest.raises(DataError, match=r"memory://d/x.bin is not the file that manifest.json"):
        local_path("memory://d")
    memory.rm("/d/x.bin")
    with pytest.raises(DataError, match="memory://d does not exist, or is incomplete"):
        local_path("memory://d")
    outside = json.dumps({"files": {"../evil": "0" * 64}})
    memory.pipe("/d/manifest.json", outside.encode())
    with pytest.raises(DataError, match=r"lists '../evil', which is not in the folder"):
        local_path("memory://d")
    kept = [path for path in cache.rglob("*") if path.is_file()]
    assert kept == []


def test_an_upload_that_fails_leaves_nothing_that_counts(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(content: bytes, *, overwrite: bool) -> None:
        with remote_folder("memory://d", overwrite=overwrite) as work:
            for name in "abc":
                (work / name).write_bytes(content)
            write_manifest(work)

    put = type(memory).put_file

    def failing(self: Any, source: str, target: str, **more: Any) -> None:
        if target.endswith("/c"):
            raise OSError("the network is gone")
        put(self, source, target, **more)

    for overwrite in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(type(memory), "put_file", failing)
            with pytest.raises(DataError, match=r"cannot write memory://d \(the network is gone\)"):
                write(b"one", overwrite=overwrite)
        assert not memory.exists("/d/manifest.json")
        assert not memory.exists("/d/a")
        memory.rm("/d", recursive=True) if memory.exists("/d") else None
        write(b"two", overwrite=False)
    assert local_path("memory://d").is_dir()


def test_what_is_there_is_not_replaced_by_mistake(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/d/holiday.jpg", b"x")
    with pytest.raises(DataError, match="memory://d already exists: choose another --out"):
        check_target("memory://d")  # type: ignore[arg-type]
    with (
        pytest.raises(DataError, match=r"is not a dataset or bundle \(no manifest.json\)"),
        remote_folder("memory://d", overwrite=True),
    ):
        pass
    assert memory.cat("/d/holiday.jpg") == b"x"


def test_mistakes_are_named(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="memory://nothing does not exist"):
        local_path("memory://nothing")
    with pytest.raises(DataError, match="matches no object"):
        open_source("memory://nothing/*.csv")
    with pytest.raises(ConfigError, match=r"crossbatch\[cloud\]"):
        local_path("nosuchstore://x/y")
    with (
        pytest.raises(ConfigError, match="is a URL; name a file of this machine"),
        atomic_file("s3://b/report.html"),  # type: ignore[arg-type]
    ):
        pass
    answer = CliRunner().invoke(app, ["train", "--data", "memory://nothing", "--out", "run"])
    assert isinstance(answer.exception, DataError)
    assert str(answer.exception) == "memory://nothing does not exist"


def test_from_a_log_to_recommendations_in_s3(bucket: Any, tmp_path: Path, cache: Path) -> None:
    """The commands with URLs give the bytes that they give with folders."""
    put_log(bucket, "shop/clicks", range(3))
    bucket.get("shop/clicks", str(tmp_path / "clicks"), recursive=True)

    def run(*arguments: object) -> str:
        answer = CliRunner().invoke(app, [str(part) for part in arguments])
        assert answer.exit_code == 0, answer.output or answer.exception
        return answer.output

    # a sampler by name: "auto" measures what a step costs, which a busy machine changes
    recipe = ("--set", "model.name=youtube_dnn", "--set", "sampler.name=in_batch")
    recipe += (
        "--set",
        "train.max_steps=4",
        "--set",
        "train.batch_size=8",
        "--set",
        "model.dim=8",
        "--quiet",
    )
    found = {}
    for root in ("s3://shop", tmp_path):
        out = "s3://shop/made" if root == "s3://shop" else tmp_path / "made"
        counts = ("--min-item-count", 1, "--min-user-count", 1, "--split", "leave_last_out")
        run("prepare", f"{root}/clicks", *counts, "--out", f"{out}/data", "--quiet")
        run_folder = tmp_path / f"run{len(found)}"
        run("train", "--data", f"{out}/data", "--out", run_folder, *recipe)
        run("export", run_folder, "--out", f"{out}/bundle", "--name", "shop", "--quiet")
        found[str(root)] = run("recommend", f"{out}/bundle", "--history", "i1,i2", "-k", 3)
    assert found["s3://shop"] == found[str(tmp_path)]
    local = files_below(tmp_path / "made/data")
    for name, path in local.items():
        assert bucket.cat(f"shop/made/data/{name}") == path.read_bytes(), name
    shutil.rmtree(cache)
    answer = CliRunner().invoke(
        app, ["prepare", "s3://shop/clicks", "--out", "s3://shop/made/data"]
    )
    assert "already exists" in str(answer.exception)
    answer = CliRunner().invoke(app, ["recommend", "s3://no-such-bucket/b", "--history", "i1"])
    assert isinstance(answer.exception, DataError)
