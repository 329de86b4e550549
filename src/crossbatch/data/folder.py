"""A dataset folder is whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.data import renaming
from crossbatch.documents import file_checksum, read_document, seal_is_broken, sealed
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
LITTLE_SPACE = 1 << 16  # bytes
NO_SPACE = os.strerror(errno.ENOSPC)


@contextmanager
def atomic_folder(
    target: Path, *, overwrite: bool = False, marker: str = MANIFEST
) -> Iterator[Path]:
    """Yield an empty folder beside `target` that becomes `target` if the body succeeds.

    On any failure, an interrupt included, the temporary folder is removed and `target` is left as
    it was.

    Args:
        target: The folder to create.
        overwrite: Replace an existing folder of the same kind; anything else is never replaced.
        marker: The file by which that kind is known.

    Raises:
        DataError: If `target` exists, or the disk is full.
    """
    target = Path(target)
    check_free(target, overwrite=overwrite, marker=marker)
    target.parent.mkdir(parents=True, exist_ok=True)
    with renaming.workplace(target) as work:
        try:
            yield work
            work.chmod(0o755)
            renaming.sync(work)
            renaming.put_in_place(work, target, replace=overwrite)
        except Exception as error:
            if is_full(target.parent, error):
                raise DataError(
                    f"the disk that holds {target.parent} is full; nothing was kept: "
                    "free some space or choose another --out"
                ) from error
            raise


def is_full(folder: Path, error: Exception) -> bool:
    """Whether a write failed for want of space.

    Few libraries pass on what the operating system said: the disk is asked, and the message.
    """
    if isinstance(error, (ConfigError, DataError)):
        return False
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return NO_SPACE in str(error) or shutil.disk_usage(folder).free < LITTLE_SPACE


def check_free(target: Path, *, overwrite: bool = False, marker: str = MANIFEST) -> None:
    """Raise `DataError` unless `target` may be written; done before any long work begins."""
    if not target.exists():
        return
    if not overwrite:
        raise DataError(f"{target} already exists: choose another --out or pass --overwrite")
    if not (target / marker).is_file() and not _is_empty(target):
        raise DataError(
            f"{target} is not a dataset or bundle (no {marker}), so --overwrite does not replace it"
        )


def write_manifest(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Add the format version and the checksum of every file, write `manifest.json`, return it."""
    files = {
        path.relative_to(folder).as_posix(): file_checksum(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    whole = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    full = sealed({"format_version": FORMAT_VERSION, **manifest, "checksum": whole, "files": files})
    (folder / MANIFEST).write_text(json.dumps(full, indent=2) + "\n", encoding="utf-8")
    return full


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a dataset folder.

    Raises:
        DataError: If the folder is no dataset, was changed, or has another format version.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise DataError(
            f"{folder} is not a dataset folder (no {MANIFEST}): "
            "make one with `crossbatch prepare` or `crossbatch synth`"
        )
    manifest = read_document(path, "prepare the dataset again")
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise DataError(
            f"{folder} has format version {version}, this release reads {FORMAT_VERSION}: "
            "prepare the dataset again"
        )
    if seal_is_broken(manifest):
        raise DataError(f"{path} was changed: prepare the dataset again")
    return manifest


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
