"""The local cache of what was fetched from object stores: folders in use, and room for new ones.

Every folder of the cache is an entry: a dataset, a bundle, or the files of a log. A process holds a
shared lock on the entries that it uses, until it ends or gives them back; those are never removed.
`$CROSSBATCH_CACHE_BYTES` bounds the cache: before something is fetched, entries that no process
uses are removed, the one that was opened longest ago first, until there is room.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from crossbatch.errors import ConfigError, DataError
from crossbatch.files import locked_alone

CACHE = "CROSSBATCH_CACHE"
LIMIT = "CROSSBATCH_CACHE_BYTES"
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

_held: dict[Path, int] = {}  # descriptors of the locked folders of this process


class NoRoomError(DataError):
    """The cache may not grow as much as is needed."""


class Entry(NamedTuple):
    """A folder of the cache."""

    path: Path
    num_bytes: int
    opened: float  # when it was opened last, in seconds since 1970
    in_use: bool  # by this or another process


def cache_folder() -> Path:
    """Where copies are kept: `$CROSSBATCH_CACHE`, or `crossbatch` in the user's cache folder."""
    if own := os.environ.get(CACHE):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crossbatch"


def cache_limit() -> int | None:
    """Bytes that the cache may have by `$CROSSBATCH_CACHE_BYTES`, such as 50G; None for any.

    Raises:
        ConfigError: If it is no number of bytes.
    """
    text = os.environ.get(LIMIT)
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ConfigError(f"{LIMIT} is {text!r}: set it to a number of bytes, such as 50G")
    return int(float(found[1]) * UNITS[found[2].upper()])


def hold(folder: Path) -> bool:
    """Lock a folder against removal, until `release` or the end; False if there is none."""
    if folder not in _held:
        try:
            lock = os.open(folder, os.O_RDONLY)
        except OSError:
            return False
        fcntl.flock(lock, fcntl.LOCK_SH)
        _held[folder] = lock
    try:
        there = os.path.samestat(os.fstat(_held[folder]), folder.stat())
        os.utime(folder)  # it was opened now
    except OSError:
        there = False
    if not there:  # it was removed before it was locked, or by hand
        release(folder)
    return there


def release(folder: Path) -> None:
    """Say that this process needs a folder no longer."""
    if (lock := _held.pop(folder, None)) is not None:
        os.close(lock)


def remove_unused(folder: Path) -> bool:
    """Remove a folder that no process uses, at once; return whether it is gone."""
    with locked_alone(folder) as free:
        if not free:
            return not folder.exists()
        # under another name, so that no process opens what is half removed
        aside = tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent)
        with suppress(OSError):
            folder.rename(Path(aside) / folder.name)
        shutil.rmtree(aside, ignore_errors=True)
        return not folder.exists()


def entries() -> list[Entry]:
    """Return what is in the cache, what was opened longest ago first.

    What killed processes left half-written is among it.
    """
    root = cache_folder()
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        with suppress(OSError), locked_alone(path) as free:  # another process may have removed it
            found.append(Entry(path, _bytes_below(path), path.stat().st_mtime, not free))
    return sorted(found, key=lambda entry: entry.opened)


def _bytes_below(folder: Path) -> int:
    """Return the size of all files of a folder, in which others may write and remove files."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(place) / name).stat().st_size
    return total


def make_room(num_bytes: int, what: str) -> None:
    """Remove what was not opened for longest, until `num_bytes` more fit into the cache.

    Raises `NoRoomError`, which names `what` is about to be fetched, if they do not fit beside what
    is in use.
    """
    limit = cache_limit()
    if limit is None:
        return
    found = entries()
    total = sum(entry.num_bytes for entry in found)
    for entry in found:
        if total + num_bytes <= limit:
            return
        if not entry.in_use and remove_unused(entry.path):
            total -= entry.num_bytes
    if total + num_bytes > limit:
        raise NoRoomError(
            f"{what} needs {num_bytes:,} bytes beside {total:,} in use in {cache_folder()}, but "
            f"{LIMIT} allows {limit:,}: raise it"
        )
