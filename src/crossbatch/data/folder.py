"""A dataset folder is whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


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
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        yield work
        work.chmod(0o755)
        _replace(work, target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"the disk that holds {target.parent} is full; nothing was kept: "
                "free some space or choose another --out"
            ) from error
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


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
    full = {"format_version": FORMAT_VERSION, **manifest, "checksum": whole, "files": files}
    (folder / MANIFEST).write_text(json.dumps(full, indent=2) + "\n", encoding="utf-8")
    return full


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a dataset folder.

    Raises:
        DataError: If the folder is no dataset or has another format version.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise DataError(
            f"{folder} is not a dataset folder (no {MANIFEST}): "
            "make one with `crossbatch prepare` or `crossbatch synth`"
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error}): prepare the dataset again") from error
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise DataError(
            f"{folder} has format version {version}, this release reads {FORMAT_VERSION}: "
            "prepare the dataset again"
        )
    return manifest


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _replace(work: Path, target: Path) -> None:
    if not target.exists():
        work.replace(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    target.replace(old / target.name)
    work.replace(target)
    shutil.rmtree(old, ignore_errors=True)
