"""JSON documents that may be anything: whatever is wrong with one is a single `DataError`.

    config = read_document(run / "config.json", "train the run anew")

A document that must not change unnoticed is sealed with a checksum of itself; files that carry
none are listed with theirs in a folder's `checksums.json`.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_BYTES = 16 << 20  # as objects in memory that may be twenty times as much
SEAL = "seal"
CHECKSUMS = "checksums.json"


def read_document(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file.

    Args:
        path: The file.
        remedy: What to do about a broken one; ends the message.

    Raises:
        DataError: If the file is missing, larger than `MAX_BYTES`, no JSON, nested beyond reason,
            or holds no object.
    """
    try:
        with path.open("rb") as file:
            payload = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    if len(payload) > MAX_BYTES:
        raise DataError(f"{path} is larger than {MAX_BYTES >> 20} MB, so it is not ours: {remedy}")
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}): {remedy}") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} holds {type(document).__name__}, not a JSON object: {remedy}")
    return document


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with a checksum of itself in it."""
    return {**document, SEAL: document_checksum(document)}


def seal_is_broken(document: Mapping[str, Any]) -> bool:
    """Whether a document changed since it was sealed; False for one that never was."""
    body = {key: value for key, value in document.items() if key != SEAL}
    return SEAL in document and document[SEAL] != document_checksum(body)


def document_checksum(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a document says, however it is laid out."""
    text = json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listed_file(folder: Path, name: str) -> Path | None:
    """The path of a file that a document lists; None unless it lies in the folder itself."""
    try:
        path = folder / name
        return path if path.resolve().is_relative_to(folder.resolve()) else None
    except (OSError, RuntimeError, TypeError, ValueError):  # links in a circle, \0, no text at all
        return None


def is_as_written(path: Path, checksum: object) -> bool:
    """Whether a file is there, can be read, and has this SHA-256."""
    try:
        return path.is_file() and file_checksum(path) == checksum
    except OSError:
        return False


def verify_checksums(folder: Path) -> None:
    """Compare a folder's files with its `checksums.json`; a folder without one passes.

    Raises:
        DataError: At the first file that is missing or was changed.
    """
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
