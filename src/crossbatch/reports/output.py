"""Files of this package, and files written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
from importlib.resources import files
from typing import TYPE_CHECKING

from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def package_file(name: str) -> str:
    """The text of a style sheet or script that lies beside this module."""
    return files("crossbatch.reports").joinpath(name).read_text(encoding="utf-8")


def write_whole(path: Path, content: bytes) -> Path:
    """Write to a temporary name beside the file, then rename: readers never see half a page.

    Args:
        path: the file to write; missing folders are made.
        content: all of it.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file inside it, such as {path / 'report'}")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ConfigError(f"cannot write {path} ({error.strerror}); name another file") from error
    return path


def _sweep(path: Path) -> None:
    """Remove what processes that were killed while they wrote this file left beside it."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        writer = left.name.removesuffix(".partial").rpartition(".")[2]
        if writer.isdigit() and not _alive(int(writer)):
            left.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True
