from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from crossbatch.data.dataset.manifest import MANIFEST, read_manifest, write_manifest
from crossbatch.errors import DataError
from crossbatch.files import atomic_folder

if TYPE_CHECKING:
    from pathlib import Path


def write(target: Path, text: str) -> None:
    with atomic_folder(target) as folder:
        (folder / "data").write_text(text)
        write_manifest(folder, {})


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
