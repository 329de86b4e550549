"""Folders that appear, or are replaced, in one step, whenever their process may be killed.

Work is done beside the target in a folder that this process holds a lock on. What a killed process
left there is known by its free lock, and swept away by whoever writes the same target next.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux's renameat2


@contextmanager
def workplace(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside `target` that is gone afterwards, unless it was renamed."""
    prefix = f".{target.name}.partial-"
    _put_back(target)
    for leftover in target.parent.glob(f"{prefix}*"):
        _sweep(leftover)
    while True:
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        lock = os.open(work, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if work.exists():
            break
        os.close(lock)  # another process took it for a leftover before it was locked
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def put_in_place(work: Path, target: Path, *, replace: bool) -> None:
    """Rename a finished folder to `target`.

    Args:
        work: The folder. After a replacement it holds what was at `target` before.
        target: Its name.
        replace: Whether a folder at `target` gives way; otherwise that is an error.
    """
    try:
        work.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not replace:
            raise DataError(f"{target} appeared meanwhile: another process was faster") from None
        _exchange(work, target)
    sync_entry(target.parent)


def sync(folder: Path) -> None:
    """Wait until all files of a folder are on disk: a name must never come before its content."""
    for path in folder.rglob("*"):
        sync_entry(path)
    sync_entry(folder)


def sync_entry(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(work: Path, target: Path) -> None:
    """Swap two folders: atomically where Linux can, else with a moment in which none is there."""
    with suppress(OSError, AttributeError):
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        names = os.fsencode(work), os.fsencode(target)
        if renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0:
            return
    aside = _aside(target)
    target.rename(aside)
    work.rename(target)
    aside.rename(work)


def _put_back(target: Path) -> None:
    """Undo an exchange that a kill interrupted in its moment."""
    aside = _aside(target)
    if aside.exists() and not target.exists():
        aside.rename(target)
    shutil.rmtree(aside, ignore_errors=True)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.aside")


def _sweep(leftover: Path) -> None:
    """Remove a folder that no living process works in."""
    with suppress(OSError):
        lock = os.open(leftover, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
        finally:
            os.close(lock)
