"""Folders that are put in place in one step, and what killed processes leave beside them."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from crossbatch.data import renaming
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def folder_with(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "data").write_text(text)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    folder_with(tmp_path / ".out.partial-dead", "half")
    folder_with(tmp_path / ".other.partial-dead", "not ours")
    with renaming.workplace(tmp_path / "out"):
        assert not (tmp_path / ".out.partial-dead").exists()
    assert names(tmp_path) == [".other.partial-dead"]


def test_the_work_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    alive = folder_with(tmp_path / ".out.partial-alive", "half")
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with renaming.workplace(tmp_path / "out"):
        assert (alive / "data").read_text() == "half"
    os.close(lock)


def test_two_writers_of_one_target_do_not_disturb_each_other(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with renaming.workplace(target) as first, renaming.workplace(target) as second:
        (first / "data").write_text("first")
        (second / "data").write_text("second")
        renaming.put_in_place(first, target, replace=False)
        with pytest.raises(DataError, match="another process was faster"):
            renaming.put_in_place(second, target, replace=False)
    assert (target / "data").read_text() == "first"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("atomic", [True, False])
def test_an_exchange_leaves_the_old_folder_in_the_workplace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    if not atomic:  # as on systems without renameat2
        monkeypatch.setattr(renaming.ctypes, "CDLL", lambda *_, **__: object())
    target = folder_with(tmp_path / "out", "old")
    work = folder_with(tmp_path / "work", "new")
    renaming.put_in_place(work, target, replace=True)
    assert ((target / "data").read_text(), (work / "data").read_text()) == ("new", "old")
    assert names(tmp_path) == ["out", "work"]


def test_an_exchange_that_was_cut_in_its_moment_is_undone(tmp_path: Path) -> None:
    folder_with(tmp_path / ".out.aside", "old")
    with renaming.workplace(tmp_path / "out"):
        assert (tmp_path / "out" / "data").read_text() == "old"
    folder_with(tmp_path / ".out.aside", "older")
    with renaming.workplace(tmp_path / "out"):
        assert (tmp_path / "out" / "data").read_text() == "old"
    assert names(tmp_path) == ["out"]
