"""`bundle.json`: the manifest of a bundle, with size and SHA-256 of every file.

It is checked before any other file is read. Files that are parsed are always compared with their
checksum; plain arrays, which are large and only mapped, when asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from crossbatch.errors import DataError
from crossbatch.files import (
    document_checksum,
    file_checksum,
    files_below,
    listed_file,
    read_document,
    write_file,
)

MANIFEST = "bundle.json"
KIND = "crossbatch bundle"
FORMAT_VERSION = 1
REMEDY = "export the run again"
MAPPED = ".npy"  # files of this kind are mapped, never parsed beyond NumPy's plain header


class BundleError(DataError):
    """A bundle that is missing, foreign, truncated, altered, or of another format version."""


def write_manifest(
    folder: Path, facts: dict[str, Any], known: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Describe every file of `folder` and `facts` in its `bundle.json`, and return that.

    Files in `known` are taken over from another bundle with what its manifest says of them: if one
    has been damaged there, it is found here as well.
    """
    known = known or {}
    files = {
        name: known.get(name) or {"bytes": path.stat().st_size, "sha256": file_checksum(path)}
        for name, path in files_below(folder).items()
        if path.name != MANIFEST
    }
    body = {"kind": KIND, "format_version": FORMAT_VERSION, **facts, "files": files}
    manifest = {"checksum": document_checksum(body), **body}
    text = json.dumps(manifest, indent=1, allow_nan=False, ensure_ascii=False)
    write_file(folder / MANIFEST, f"{text}\n".encode())
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a bundle after comparing it with its own checksum.

    Raises:
        BundleError: If there is none, or it was altered, or is of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise BundleError(
            f"{folder} is not a bundle (no {MANIFEST}): make one with `crossbatch export RUN --out "
            f"{folder.name}`"
        )
    try:
        manifest = read_document(path, "the bundle is damaged, export it again")
    except DataError as error:
        raise BundleError(str(error)) from None
    if manifest.get("kind") != KIND:
        raise BundleError(f"{path} is not the manifest of a crossbatch bundle")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise BundleError(
            f"{folder} has bundle format {manifest.get('format_version')!r}, this release reads "
            f"{FORMAT_VERSION}: {REMEDY}"
        )
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    if manifest.get("checksum") != document_checksum(body):
        raise BundleError(f"{path} was altered: its checksum does not match, {REMEDY}")
    return manifest


def verify_files(folder: Path, manifest: dict[str, Any], *, everything: bool) -> None:
    """Compare the files with the manifest; plain arrays are hashed too if `everything` is.

    Raises:
        BundleError: At the first file that is missing, altered, truncated, out of the folder, or
            not in the manifest.
    """
    listed = {MANIFEST, *manifest["files"]}
    for name in files_below(folder):
        if name not in listed and name[0] != ".":
            raise BundleError(f"{folder} holds {name}, which its manifest does not list")
    hashed: dict[Path, str] = {}
    for name, entry in manifest["files"].items():
        path = listed_file(folder, name)
        if path is None:
            raise BundleError(
                f"{folder / MANIFEST} lists {name!r}, which is not a file of the bundle"
            )
        if not path.is_file():
            raise BundleError(f"{folder} lacks {name}: the bundle is incomplete, {REMEDY}")
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise BundleError(
                f"{path} has {size} bytes instead of {entry['bytes']}: the bundle is damaged, "
                f"{REMEDY}"
            )
        if everything or not name.endswith(MAPPED):
            hashed[path] = entry["sha256"]
    with ThreadPoolExecutor() as threads:  # hashing releases the interpreter lock
        found = threads.map(file_checksum, hashed)
        for (path, expected), checksum in zip(hashed.items(), found, strict=True):
            if checksum != expected:
                raise BundleError(
                    f"{path} was altered: its checksum does not match the manifest, {REMEDY}"
                )
