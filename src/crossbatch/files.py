"""Atomic files and folders, checksums, and JSON documents: the one way to write to disk.

    with atomic_folder(out) as folder:        # whole or absent
        write_document(folder / "config.json", config)
    config = read_document(out / "config.json", "train the run again")

A document can be sealed with a checksum of its own content; other files are listed with their
checksums in a document of their folder. Only the standard library is needed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

from crossbatch.errors import ConfigError, DataError

MAX_DOCUMENT_BYTES = 16 << 20  # parsed, a document may take twenty times its size in memory
SEAL = "seal"
CHECKSUMS = "checksums.json"
PIECE = 1 << 20  # bytes read at a time
LITTLE_SPACE = 1 << 16  # bytes; a disk with less is full
NO_SPACE = os.strerror(errno.ENOSPC)
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # arguments of Linux's renameat2


# --- files ---


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that is renamed to it if the body succeeds.

    The parent folder is created. Temporary files of processes that were killed are removed. Where
    `path` is a symbolic link, the file that it leads to is written.

    Raises:
        ConfigError: If `path` is a folder, a device or a pipe.
        DataError: If the operating system refuses, a full disk for example.
    """
    from crossbatch.remote import is_url  # which imports this module

    if is_url(path):
        raise ConfigError(f"{path} is a URL; name a file of this machine")
    path = _followed(path)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file inside it, such as {path / 'report'}")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is a device or a pipe; name a file")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned_files(path)
        yield partial
        partial.replace(path)
        sync_path(path.parent)
    except OSError as error:
        raise DataError(
            f"cannot write {path} ({error.strerror or error}): free some space or choose "
            "another place"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _followed(path: Path) -> Path:
    """The path with symbolic links followed: a link is kept, what it leads to is replaced."""
    try:
        followed = path.resolve()
        circular = followed.is_symlink()  # Python 3.13 returns the link
    except (OSError, RuntimeError):  # Python 3.11 and 3.12 raise
        circular = True
    if circular:
        raise ConfigError(f"{path} is a symbolic link that leads to itself; remove it")
    return followed


def write_file(path: Path, content: bytes) -> Path:
    """Write a file atomically, so that readers see the old or the new content; return its path."""
    with atomic_file(path) as partial:
        write_durably(partial, content)
    return path


def write_durably(path: Path, content: bytes) -> None:
    """Write a file in place; its bytes are on disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned_files(path: Path) -> None:
    """Remove the temporary files of processes that have ended."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        process = partial.name.removesuffix(".partial").rpartition(".")[2]
        with suppress(PermissionError, OverflowError, ValueError):  # another user's; not of ours
            try:
                os.kill(int(process), 0)  # asks whether it runs
            except ProcessLookupError:
                partial.unlink(missing_ok=True)


# --- folders ---


@contextmanager
def atomic_folder(
    target: Path, *, overwrite: bool = False, marker: str = "manifest.json"
) -> Iterator[Path]:
    """Yield an empty folder beside `target` that becomes `target` if the body succeeds.

    On any failure, an interrupt included, the temporary folder is removed and `target` is left as
    it was. Where `target` is a symbolic link, the folder that it leads to is written.

    Args:
        target: The folder to create; or a URL, see `crossbatch.remote`.
        overwrite: Replace an existing folder of the same kind; anything else is never replaced.
        marker: The file that identifies that kind of folder.

    Raises:
        DataError: If `target` exists, or the disk is full.
    """
    from crossbatch.remote import is_url, remote_folder  # which imports this module

    if is_url(target):
        with remote_folder(target, overwrite=overwrite, marker=marker) as work:
            yield work
        return
    target = _followed(Path(target))
    check_target(target, overwrite=overwrite, marker=marker)
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(target) as work:
        try:
            yield work
            denied = os.umask(0o077)  # which can only be read by setting it
            os.umask(denied)
            work.chmod(0o777 & ~denied)  # mkdtemp made it private
            for path in [*work.rglob("*"), work]:  # the name must not reach the disk before them
                sync_path(path)
            put_in_place(work, target, replace=overwrite)
        except Exception as error:
            if _is_disk_full(target.parent, error):
                raise DataError(
                    f"the disk that holds {target.parent} is full; nothing was kept: "
                    "free some space or choose another --out"
                ) from error
            raise


def check_target(target: Path, *, overwrite: bool = False, marker: str = "manifest.json") -> None:
    """Raise `DataError` unless `atomic_folder` may write `target`; call it before long work."""
    from crossbatch.remote import check_remote, is_url  # which imports this module

    if is_url(target):
        check_remote(target, overwrite=overwrite, marker=marker)
        return
    target = _followed(target)
    if not target.exists():
        return
    if not overwrite:
        raise DataError(f"{target} already exists: choose another --out or pass --overwrite")
    is_empty = target.is_dir() and not any(target.iterdir())
    if not is_empty and not (target / marker).is_file():
        raise DataError(
            f"{target} is not a dataset or bundle (no {marker}), so --overwrite does not replace it"
        )
    if Path.cwd().is_relative_to(target):
        raise DataError(f"{target} holds the current folder: start the command outside of it")


@contextmanager
def locked_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside `target`, removed afterwards unless it was renamed.

    The process holds a lock on it, so that the next writer of `target` can tell the folder of a
    killed process, which it removes, from one in use.
    """
    remove_leftovers(target)
    while True:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
        lock = os.open(work, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if work.exists():
            break
        os.close(lock)  # another process removed it before it was locked
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def remove_leftovers(target: Path) -> None:
    """Finish or remove what killed writers of a folder left beside it."""
    aside = _aside(target)
    if aside.exists() and not target.exists():
        aside.rename(target)
    shutil.rmtree(aside, ignore_errors=True)
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.partial-*"):
        with locked_alone(leftover) as free:
            if free:
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def locked_alone(folder: Path) -> Iterator[bool]:
    """Lock a folder for this process alone; False in the body if it is in use, or there is none."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(lock)


def put_in_place(work: Path, target: Path, *, replace: bool) -> None:
    """Rename a finished folder to `target`.

    With `replace` a folder that is there is replaced and ends up at `work`, otherwise it is an
    error.
    """
    try:
        work.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not replace:
            raise DataError(f"{target} appeared meanwhile: another process was faster") from None
        _exchange(work, target)
    sync_path(target.parent)


def _exchange(work: Path, target: Path) -> None:
    """Swap two folders; without Linux's renameat2, `target` is absent for a moment."""
    with suppress(OSError, AttributeError):
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        names = os.fsencode(work), os.fsencode(target)
        if renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0:
            return
    aside = _aside(target)
    target.rename(aside)
    work.rename(target)
    aside.rename(work)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.aside")


def _is_disk_full(folder: Path, error: Exception) -> bool:
    """Whether a write failed for lack of space; many libraries hide the system's error number."""
    if isinstance(error, DataError) and isinstance(error.__cause__, OSError):
        error = error.__cause__
    if isinstance(error, (ConfigError, DataError)):
        return False
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return NO_SPACE in str(error) or shutil.disk_usage(folder).free < LITTLE_SPACE


# --- checksums ---


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; an `OSError` for a pipe or a device, which might never answer."""
    check_regular(path)
    return path.open("rb")


def check_regular(*paths: Path) -> None:
    """Raise `OSError` for a path that is neither a file nor a folder, such as a pipe."""
    for path in paths:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(errno.EINVAL, f"{path} is a pipe or a device, not a file")


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_crc32(path: Path) -> int:
    """Return the CRC-32 of a file, for large files that are checked often."""
    crc32 = 0
    with open_regular(path) as file:
        while piece := file.read(PIECE):
            crc32 = zlib.crc32(piece, crc32)
    return crc32


def files_below(folder: Path) -> dict[str, Path]:
    """Return every file in a folder and its subfolders by relative name, sorted."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in paths}


def listed_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file that a document lists, or None if it is outside the folder."""
    parts, path = PurePosixPath(name).parts, folder / name
    if not parts or name != "/".join(parts) or ".." in parts or "\\" in name:
        return None
    try:
        return path if path.resolve().is_relative_to(folder.resolve()) else None
    except (OSError, RuntimeError, ValueError):  # circular links, null bytes
        return None


def is_as_written(path: Path, checksum: object) -> bool:
    """Whether a file exists, can be read, and has this SHA-256."""
    try:
        return path.is_file() and file_checksum(path) == checksum
    except OSError:
        return False


def verify_checksums(folder: Path) -> None:
    """Compare a folder's files with its `checksums.json`; a folder without one passes.

    Raises:
        DataError: At the first file that is missing or was changed.
        OSError: If a pipe or a device is among the files.
    """
    check_regular(*folder.rglob("*"))
    if not (folder / CHECKSUMS).is_file():
        return
    listed = read_document(folder / CHECKSUMS, "restore it, or delete it to do without checks")
    for name, expected in listed.items():
        path = listed_file(folder, name)
        if path is None:
            raise DataError(f"{folder / CHECKSUMS} lists {name!r}, which is not in the folder")
        if not is_as_written(path, expected):
            raise DataError(
                f"{path} is missing or was changed after it was written: restore it, or delete "
                f"{CHECKSUMS} to accept it as it is"
            )


# --- JSON documents ---


def read_document(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file; `remedy` ends the message of a `DataError`.

    That is raised if the file is missing, larger than `MAX_DOCUMENT_BYTES`, not JSON, nested too
    deeply, or not an object.
    """
    try:
        with open_regular(path) as file:
            payload = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    if len(payload) > MAX_DOCUMENT_BYTES:
        limit = f"{MAX_DOCUMENT_BYTES >> 20} MB"
        raise DataError(f"{path} is larger than {limit}, so crossbatch did not write it: {remedy}")
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}): {remedy}") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} holds {type(document).__name__}, not a JSON object: {remedy}")
    return document


def document_bytes(document: Mapping[str, Any] | list[Any], indent: int = 1) -> bytes:
    """Return a document as `write_document` writes it."""
    return (json.dumps(document, indent=indent) + "\n").encode()


def write_document(path: Path, document: Mapping[str, Any] | list[Any], *, indent: int = 1) -> Path:
    """Write a JSON document atomically and return its path."""
    return write_file(path, document_bytes(document, indent))


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with a checksum of its content added."""
    return {**document, SEAL: document_checksum(document)}


def seal_is_broken(document: Mapping[str, Any]) -> bool:
    """Whether a document was changed after it was sealed; False for one without a seal."""
    body = {key: value for key, value in document.items() if key != SEAL}
    return SEAL in document and document[SEAL] != document_checksum(body)


def document_checksum(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a document's content, independent of its layout."""
    text = json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as one, by dotted keys."""
    whole: dict[str, Any] = {}
    for key, value in document.items():
        inner = isinstance(value, Mapping)
        whole |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return whole
