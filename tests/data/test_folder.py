from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import pytest

from crossbatch.data.folder import MANIFEST, atomic_folder, read_manifest, write_manifest
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(target: Path, text: str, **options: bool) -> None:
    with atomic_folder(target, **options) as folder:
        (folder / "data").write_text(text)
        write_manifest(folder, {})


def fail(target: Path, failure: BaseException, **options: bool) -> None:
    with atomic_folder(target, **options) as folder:
        (folder / "data").write_text("new")
        raise failure


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    with atomic_folder(target) as folder:
        (folder / "data").write_text("x")
        assert not target.exists()
    assert names(target) == ["data"]
    assert names(target.parent) == ["out"]


@pytest.mark.parametrize("failure", [RuntimeError("no"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, failure: BaseException) -> None:
    with pytest.raises(type(failure)):
        fail(tmp_path / "out", failure)
    assert names(tmp_path) == []


def test_a_failure_leaves_the_old_dataset_alone(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with pytest.raises(KeyboardInterrupt):
        fail(tmp_path / "out", KeyboardInterrupt(), overwrite=True)
    assert (tmp_path / "out" / "data").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_an_existing_folder_is_replaced_only_when_told(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with pytest.raises(DataError, match="--overwrite"):
        write(tmp_path / "out", "new")
    write(tmp_path / "out", "new", overwrite=True)
    assert (tmp_path / "out" / "data").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_overwrite_never_replaces_what_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("x")
    with pytest.raises(DataError, match="not a dataset"):
        write(tmp_path / "thesis", "new", overwrite=True)
    assert names(tmp_path / "thesis") == ["chapter"]


def test_a_full_disk_is_told_plainly(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"disk .* is full"), atomic_folder(tmp_path / "out"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == []


def test_the_checksum_is_that_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / "a", "x")
    write(tmp_path / "b", "x")
    write(tmp_path / "c", "y")
    sums = [read_manifest(tmp_path / name)["checksum"] for name in "abc"]
    assert sums[0] == sums[1] != sums[2]


def test_foreign_and_older_folders_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="crossbatch prepare"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps({"format_version": 99}))
    with pytest.raises(DataError, match="version 99"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        read_manifest(tmp_path)
