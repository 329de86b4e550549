"""Datasets in shards in an object store: what the cache holds meanwhile, and the same batches."""

from __future__ import annotations

import shutil
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from crossbatch import cache as local_cache
from crossbatch.cache import NoRoomError
from crossbatch.data import Dataset, PrepareOptions, open_dataset, prepare
from crossbatch.data.dataset import shards
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.errors import DataError
from crossbatch.evaluation.runs import evaluate_runs
from crossbatch.files import files_below
from crossbatch.training import fit

from .tiny_runs import tiny_recipe

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = PrepareOptions(min_item_count=1, min_user_count=1, shards=5)
RECIPE = tiny_recipe(
    {"name": "in_batch"},
    train={"max_steps": 60, "eval_every": 30, "lr": 0.01, "sample_by": "interaction"},
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(local_cache.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(place: Path | str) -> Dataset:
    prepare(synthetic_source(SynthOptions(300, 100, 1_500, seed=3)), place, OPTIONS)
    return open_dataset(place)


def shards_in(cache: Path) -> set[str]:
    """Shards of which the cache has files, half-written ones included."""
    names = (path.relative_to(cache).parts for path in cache.rglob("*.npy"))
    parts = {part[part.index("shards") + 1] for part in names if "shards" in part}
    return {name.strip(".").partition(".")[0] for name in parts}


def settle(dataset: Dataset) -> None:
    """Wait for what is fetched in the background, so that the files are counted at rest."""
    assert dataset.shards is not None
    if (ahead := dataset.shards._files._ahead) is not None:
        ahead[1].join()


def same(one: Any, other: Any) -> bool:
    names = ("user_ids", "history", "item_ids")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


def test_two_shards_at_a_time(memory: Any, cache: Path, tmp_path: Path) -> None:
    local, remote = made(tmp_path / "local"), made("memory://shop/data")
    assert remote.manifest["checksum"] == local.manifest["checksum"]
    assert remote.place == "memory://shop/data"
    assert shards_in(cache) == set()
    remote.verify()
    assert shards_in(cache) == set()  # nor does evaluation need any
    seen = set()
    per_pass = -(-local.num_samples() // 16)
    both = (each.batches(16, seed=2, sample_by="interaction") for each in (local, remote))
    for one, other in islice(zip(*both, strict=True), 3 * per_pass):
        assert same(one, other)
        settle(remote)
        there = shards_in(cache)
        assert len(there) <= 2
        seen |= there
    assert len(seen) == 5
    assert (remote.sampling_law(3) == local.sampling_law(3)).all()  # which reads all of them
    assert len(shards_in(cache)) <= 2


def test_several_iterators_share_the_two_shards(memory: Any, cache: Path) -> None:
    """Choosing a sampler draws some batches before training does, with seeds of its own."""
    remote = made("memory://shop/data")
    streams = [remote.batches(16, seed=seed, sample_by="interaction") for seed in range(4)]
    fresh = [remote.batches(16, seed=seed, sample_by="interaction") for seed in range(4)]
    drawn: list[list[Any]] = [[], [], [], []]
    for _ in range(30):
        for stream, own in zip(streams, drawn, strict=True):
            own.append(next(stream))
            settle(remote)
            assert len(shards_in(cache)) <= 2
    for stream, own in zip(fresh, drawn, strict=True):  # one after the other
        assert all(map(same, own, islice(stream, 30)))


def test_a_bound_of_bytes(memory: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = made("memory://shop/data")
    sizes = {name: len(memory.cat(f"/shop/data/{name}")) for name in remote.manifest["files"]}
    largest = max(
        sum(size for name, size in sizes.items() if name.startswith(f"shards/{number:04d}/"))
        for number in range(5)
    )
    main = sum(path.stat().st_size for path in files_below(cache).values())
    for bound, most in ((main + 2 * largest, 2), (main + largest + 100, 1)):
        monkeypatch.setenv(local_cache.LIMIT, str(bound))
        dataset = open_dataset("memory://shop/data")
        for _ in islice(dataset.batches(16, seed=2), 200):
            settle(dataset)
            held = sum(path.stat().st_size for path in files_below(cache).values())
            assert held <= bound
            assert 1 <= len(shards_in(cache)) <= most
    monkeypatch.setenv(local_cache.LIMIT, str(main + largest // 2))
    shutil.rmtree(cache / next(cache.iterdir()).name / "data/shards")
    with pytest.raises(NoRoomError, match=r"data/shards/000\d needs [\d,]+ bytes beside"):
        next(open_dataset("memory://shop/data").batches(16, seed=2))


@pytest.mark.parametrize("damage", ["removed", "truncated", "changed"])
def test_a_damaged_shard_in_the_store(memory: Any, cache: Path, damage: str) -> None:
    remote = made("memory://shop/data")
    place = "/shop/data/shards/0003/times.npy"
    content = memory.cat(place)
    memory.rm(place)
    message = "memory://shop/data does not exist, or is incomplete"
    if damage != "removed":
        message = "shards/0003/times.npy is not the file that manifest.json describes"
        memory.pipe(place, content[:-8] if damage == "truncated" else content[:-8] + b"12345678")
    with pytest.raises(DataError, match=message):
        list(islice(remote.batches(16, seed=2), 200))
    assert "0003" not in shards_in(cache)
    memory.pipe(place, content)
    assert len(list(islice(remote.batches(16, seed=2), 200))) == 200


def test_the_next_shard_comes_in_the_background(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure there is not the end: who needs the shard fetches it."""
    from threading import current_thread, main_thread

    remote = made("memory://shop/data")
    fetch, by_main, failed = shards.fetch_part, [], []

    def unreliable(url: str, folder: Path, part: str, files: Any) -> None:
        if current_thread() is main_thread():
            by_main.append(part)
        elif not failed:
            failed.append(part)
            raise DataError("the network is gone")
        fetch(url, folder, part, files)

    monkeypatch.setattr(shards, "fetch_part", unreliable)
    list(islice(remote.batches(16, seed=2), 60))
    assert len(by_main) == 2  # the first one, and the one that had failed
    assert by_main[1:] == failed


def test_training_from_s3_is_training_from_a_folder(
    bucket: Any, cache: Path, tmp_path: Path
) -> None:
    local, remote = made(tmp_path / "local"), made("s3://shop/data")
    results = [
        fit(dataset, RECIPE, tmp_path / name)
        for name, dataset in (("one", local), ("other", remote))
    ]
    for result in results:
        for name in ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes"):
            result.pop(name)
    assert results[0] == results[1]
    assert 1 <= len(shards_in(cache)) <= 2
    assert fit(remote, RECIPE, tmp_path / "other", resume=True)["test"] == results[1]["test"]
    shutil.rmtree(cache)
    (entry,) = evaluate_runs([tmp_path / "other"], "test").values()  # which finds the URL
    assert entry["metrics"]["recall@20"] == results[0]["test"]["recall@20"]
    assert shards_in(cache) == set()
