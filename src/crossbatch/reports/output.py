"""Files of this package, and files written whole or not at all."""

from __future__ import annotations

import contextlib
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
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ConfigError(f"cannot write {path} ({error.strerror}); name another file") from error
    return path
