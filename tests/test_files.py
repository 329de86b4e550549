"""Atomic files and folders, what killed processes leave beside them, checksums and documents."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossbatch import files
from crossbatch.data.dataset.arrays import map_array
from crossbatch.data.readers import open_source
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import (
    CHECKSUMS,
    MAX_DOCUMENT_BYTES,
    atomic_folder,
    document_checksum,
    file_checksum,
    read_document,
    seal_is_broken,
    sealed,
    verify_checksums,
    write_document,
    write_file,
)
from crossbatch.training.run_folder import RunFolder

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
SLOW_DISK = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def folder_with(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "data").write_text(text)
    return path


# --- files ---


def dead_process():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path):
    page = tmp_path / "a[1].json"
    left = tmp_path / f".a[1].json.{dead_process()}.partial"
    left.write_text("half")
    write_file(page, b"whole")
    assert page.read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["a[1].json"]


def test_what_a_living_writer_holds_is_left_alone(tmp_path):
    held = tmp_path / f".page.html.{os.getppid()}.partial"
    other = tmp_path / ".page.html.mine.partial"
    for path in (held, other):
        path.write_text("half")
    write_file(tmp_path / "page.html", b"whole")
    assert held.exists()
    assert other.exists()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    write_file(tmp_path / "a.json", b"old")

    def full_disk(path, content):
        path.write_bytes(content[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_durably", full_disk)
    with pytest.raises(DataError, match=r"a\.json \(No space left on device\)"):
        write_document(tmp_path / "a.json", {"new": 1})
    assert names(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"old"


def test_a_document_on_a_full_disk_is_the_folders_failure(tmp_path, monkeypatch):
    def full_disk(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_durably", full_disk)
    with pytest.raises(DataError, match=r"disk .* is full"), atomic_folder(tmp_path / "out") as new:
        write_document(new / "a.json", {})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "read",
    [
        files.file_checksum,
        files.file_crc32,
        lambda path: read_document(path, "x"),
        map_array,
        open_source,
        lambda path: verify_checksums(path.parent),
        lambda path: RunFolder(path.parent, resume=True),
    ],
)
def test_bug_a_pipe_in_a_folder_was_waited_for_for_ever(tmp_path, read):
    os.mkfifo(tmp_path / "log.csv")
    with pytest.raises((ConfigError, DataError, OSError), match=r"a pipe or a device|be written"):
        read(tmp_path / "log.csv")


# --- folders ---


def write(target: Path, text: str, **options: bool) -> None:
    with atomic_folder(target, **options) as folder:
        (folder / "data").write_text(text)
        (folder / "manifest.json").write_text("{}")


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


def test_an_existing_folder_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with pytest.raises(DataError, match="--overwrite"):
        write(tmp_path / "out", "new")
    write(tmp_path / "out", "new", overwrite=True)
    assert (tmp_path / "out" / "data").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_what_a_link_leads_to_is_replaced_and_the_link_kept(tmp_path: Path) -> None:
    write(tmp_path / "real", "old")
    (tmp_path / "links").mkdir()
    link, dangling = tmp_path / "links" / "out", tmp_path / "links" / "new"
    link.symlink_to(tmp_path / "real")
    dangling.symlink_to(tmp_path / "made")
    with pytest.raises(DataError, match="--overwrite"):
        write(link, "new")
    write(link, "new", overwrite=True)
    write(dangling, "first")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert (tmp_path / "real" / "data").read_text() == "new"
    assert (tmp_path / "made" / "data").read_text() == "first"
    assert names(tmp_path) == ["links", "made", "real"]
    (tmp_path / "page.html").symlink_to(tmp_path / "links" / "page.html")
    write_file(tmp_path / "page.html", b"<p>")
    assert (tmp_path / "links" / "page.html").read_bytes() == b"<p>"
    assert (tmp_path / "page.html").is_symlink()


def test_a_link_to_itself_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match="leads to itself"):
        write(tmp_path / "loop", "new", overwrite=True)
    with pytest.raises(ConfigError, match="leads to itself"):
        write_file(tmp_path / "loop", b"")


def test_devices_and_pipes_are_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="a device or a pipe"):
        write_file(tmp_path / "pipe", b"")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("place", [".", "features"])
def test_the_current_folder_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    write(tmp_path / "out", "old")
    (tmp_path / "out" / "features").mkdir()
    monkeypatch.chdir(tmp_path / "out" / place)
    with pytest.raises(DataError, match="holds the current folder"):
        write(Path("." if place == "." else ".."), "new", overwrite=True)
    assert (tmp_path / "out" / "data").read_text() == "old"


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o007])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write(tmp_path / "out", "x")
        write_file(tmp_path / "page.html", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~umask
    for file in (tmp_path / "out" / "data", tmp_path / "page.html"):
        assert file.stat().st_mode & 0o777 == 0o666 & ~umask


def test_overwrite_never_replaces_what_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("x")
    with pytest.raises(DataError, match="not a dataset"):
        write(tmp_path / "thesis", "new", overwrite=True)
    assert names(tmp_path / "thesis") == ["chapter"]


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"disk .* is full"), atomic_folder(tmp_path / "out"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == []


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    folder_with(tmp_path / ".out.partial-dead", "half")
    folder_with(tmp_path / ".other.partial-dead", "not ours")
    with files.locked_folder(tmp_path / "out"):
        assert not (tmp_path / ".out.partial-dead").exists()
    assert names(tmp_path) == [".other.partial-dead"]


def test_the_work_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    alive = folder_with(tmp_path / ".out.partial-alive", "half")
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with files.locked_folder(tmp_path / "out"):
        assert (alive / "data").read_text() == "half"
    os.close(lock)


def test_two_writers_of_one_target_do_not_disturb_each_other(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with files.locked_folder(target) as first, files.locked_folder(target) as second:
        (first / "data").write_text("first")
        (second / "data").write_text("second")
        files.put_in_place(first, target, replace=False)
        with pytest.raises(DataError, match="another process was faster"):
            files.put_in_place(second, target, replace=False)
    assert (target / "data").read_text() == "first"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("atomic", [True, False])
def test_an_exchange_leaves_the_old_folder_in_the_workplace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    if not atomic:  # as on systems without renameat2
        monkeypatch.setattr(files.ctypes, "CDLL", lambda *_, **__: object())
    target = folder_with(tmp_path / "out", "old")
    work = folder_with(tmp_path / "work", "new")
    files.put_in_place(work, target, replace=True)
    assert ((target / "data").read_text(), (work / "data").read_text()) == ("new", "old")
    assert names(tmp_path) == ["out", "work"]


def test_an_exchange_that_was_cut_in_its_moment_is_undone(tmp_path: Path) -> None:
    folder_with(tmp_path / ".out.aside", "old")
    with files.locked_folder(tmp_path / "out"):
        assert (tmp_path / "out" / "data").read_text() == "old"
    folder_with(tmp_path / ".out.aside", "older")
    with files.locked_folder(tmp_path / "out"):
        assert (tmp_path / "out" / "data").read_text() == "old"
    assert names(tmp_path) == ["out"]


# --- checksums and documents ---


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"a": 1}x',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"n": ' + b"9" * 5_000 + b"}",
        b" " * (MAX_DOCUMENT_BYTES + 1),
    ],
    ids=lambda content: f"{content[:6]!r}-{len(content)}",
)
def test_whatever_is_wrong_is_one_sentence(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.json .*: write it again") as caught:
        read_document(tmp_path / "x.json", "write it again")
    assert len(str(caught.value)) < 400


def test_missing_files_and_folders_are_named(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            read_document(path, "write it")


@SLOW_DISK
@given(content=st.binary(max_size=60))
def test_random_bytes_are_an_object_or_an_error(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        assert read_document(path, "") == json.loads(content)


@given(document=st.dictionaries(st.text(), JSON))
def test_a_seal_survives_the_file_and_no_change(document):
    document.pop("seal", None)
    again = json.loads(json.dumps(sealed(document), indent=3))
    assert not seal_is_broken(again)
    assert not seal_is_broken(document)
    assert seal_is_broken(again | {"another": 1})
    for key in document:
        assert seal_is_broken({k: v for k, v in again.items() if k != key})


def test_the_checksum_is_of_the_meaning_not_of_the_layout():
    assert document_checksum({"a": 1, "b": [2]}) == document_checksum({"b": [2], "a": 1})
    assert document_checksum({"a": 1}) != document_checksum({"a": 2})


def test_a_folder_is_compared_with_its_list(tmp_path):
    verify_checksums(tmp_path)  # nothing is listed
    (tmp_path / "a").write_text("x")
    (tmp_path / CHECKSUMS).write_text(json.dumps({"a": file_checksum(tmp_path / "a")}))
    verify_checksums(tmp_path)
    (tmp_path / "a").write_text("y")
    with pytest.raises(DataError, match="was changed"):
        verify_checksums(tmp_path)
    (tmp_path / "a").unlink()
    with pytest.raises(DataError, match="missing"):
        verify_checksums(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret"])
def test_a_list_cannot_point_elsewhere(tmp_path, name):
    (tmp_path / "secret").write_text("x")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / CHECKSUMS).write_text(json.dumps({name: "0"}))
    with pytest.raises(DataError, match="not in the folder"):
        verify_checksums(folder)


@pytest.mark.parametrize("name", ["loop", "a\0b", "\ud800", "x" * 5000, "loop/a"])
def test_bug_a_list_with_names_that_are_none(tmp_path, name):
    """A link to itself, a null byte, a name too long: each once ended in a traceback."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / CHECKSUMS).write_text(json.dumps({name: "0"}))
    with pytest.raises(DataError):
        verify_checksums(tmp_path)


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o700), (0o022, 0o755), (0o027, 0o750)])
def test_a_folder_has_the_permissions_of_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with atomic_folder(tmp_path / "x"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == mode
