"""The manifest of a dataset folder: what it holds, with the checksum of every file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from crossbatch.errors import DataError
from crossbatch.files import (
    file_checksum,
    files_below,
    read_document,
    seal_is_broken,
    sealed,
    write_document,
)

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


def write_manifest(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Add the format version and the checksum of every file, write `manifest.json`, return it."""
    files = {
        name: file_checksum(path)
        for name, path in files_below(folder).items()
        if path.name != MANIFEST
    }
    whole = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    full = sealed({"format_version": FORMAT_VERSION, **manifest, "checksum": whole, "files": files})
    write_document(folder / MANIFEST, full, indent=2)
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
