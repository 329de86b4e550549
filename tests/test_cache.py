"""The cache of object stores: what is in use stays, what was opened longest ago goes first."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from crossbatch import cache
from crossbatch.cache import NoRoomError, entries, hold, make_room, release, remove_unused
from crossbatch.cli import app
from crossbatch.errors import ConfigError
from crossbatch.remote import local_path, reporting

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv(cache.LIMIT, raising=False)
    return tmp_path / "cache"


def put(folder: Path, name: str, size: int, opened: int) -> Path:
    path = folder / name / "shop"
    path.mkdir(parents=True)
    (path / "x.bin").write_bytes(b"x" * size)
    os.utime(folder / name, (opened, opened))
    return folder / name


def held_elsewhere(path: Path) -> int:
    """A lock as another process has it: flock tells descriptors apart, not processes."""
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def test_what_was_opened_longest_ago_goes_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, older = (
        put(folder, name, 100, opened) for name, opened in (("a", 20), ("b", 30), ("c", 10))
    )
    make_room(10_000, "nothing")  # without a bound there is always room
    assert [entry.path for entry in entries()] == [older, old, new]
    monkeypatch.setenv(cache.LIMIT, "300")
    make_room(0, "it")
    assert len(entries()) == 3
    make_room(50, "it")
    assert [entry.path for entry in entries()] == [old, new]
    assert hold(old)  # which makes it the newest, and protects it
    make_room(200, "it")
    assert [entry.path for entry in entries()] == [old]
    with pytest.raises(NoRoomError, match=r"it needs 201 bytes beside 100 in use .* allows 300"):
        make_room(201, "it")
    release(old)
    make_room(201, "it")
    assert entries() == []


def test_what_another_process_uses_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, free = put(folder, "a", 100, 10), put(folder, "b", 100, 20)
    lock = held_elsewhere(used)
    assert not remove_unused(used)
    monkeypatch.setenv(cache.LIMIT, "0.25K")
    make_room(100, "it")
    assert [entry.path for entry in entries()] == [used]
    assert [entry.in_use for entry in entries()] == [True]
    assert not free.exists()
    os.close(lock)
    assert remove_unused(used)
    assert list(folder.iterdir()) == []  # nothing half removed either


def test_a_folder_that_is_gone_is_not_held(folder: Path) -> None:
    path = put(folder, "a", 1, 10)
    assert hold(path)
    assert hold(path)
    (path / "shop/x.bin").unlink()
    (path / "shop").rmdir()
    path.rmdir()  # by hand
    assert not hold(path)
    put(folder, "a", 1, 10)
    assert hold(path)
    assert not remove_unused(path)
    release(path)
    release(path)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("12", 12), ("50G", 50 * 10**9), ("1.5 kb", 1_500), ("2T", 2 * 10**12), ("", None)],
)
def test_bounds(monkeypatch: pytest.MonkeyPatch, text: str, limit: int | None) -> None:
    monkeypatch.setenv(cache.LIMIT, text)
    assert cache.cache_limit() == limit


def test_a_bound_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.LIMIT, "plenty")
    with pytest.raises(ConfigError, match=r"CACHE_BYTES is 'plenty': set it to a number of bytes"):
        make_room(1, "it")


def test_fetching_is_reported_and_bounded(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("one/a.csv", 300), ("one/b.csv", 700), ("two/a.csv", 600)):
        memory.pipe(f"/{name}", b"x" * size)
    seen: list[tuple[str, int, int | None]] = []
    with reporting(lambda *report: seen.append(report)):
        one = local_path("memory://one")
    local_path("memory://one")  # outside, and there already
    assert {(stage, total) for stage, _, total in seen} == {("fetching", 1_000)}
    done = [each for _, each, _ in seen]
    assert done == sorted(done)
    assert done[-1] == 1_000
    monkeypatch.setenv(cache.LIMIT, "1500")
    with pytest.raises(NoRoomError, match="memory://two needs 600 bytes beside 1,000 in use"):
        local_path("memory://two")
    assert [entry.num_bytes for entry in entries()] == [1_000]
    release(one.parent)
    two = local_path("memory://two")
    assert [entry.num_bytes for entry in entries()] == [600]
    release(two.parent)


def test_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> str:
        answer = CliRunner().invoke(app, ["cache", *arguments], catch_exceptions=False)
        return answer.output

    assert run() == f"{0:>15,}  bytes in {folder}, no bound\n"
    put(folder, "a", 1_234, 10)
    used = held_elsewhere(put(folder, "b", 10, 20))
    monkeypatch.setenv(cache.LIMIT, "1M")
    first, second, last = run().splitlines()
    assert first.split()[0] == "1,234"
    assert first.endswith("  shop")
    assert second.endswith("  shop, in use")
    assert last.endswith(f"1,244  bytes in {folder}, at most 1,000,000")
    assert run("--clear") == "1,234 bytes freed; 1 in use were kept\n"
    assert [path.name for path in folder.iterdir()] == ["b"]
    os.close(used)
