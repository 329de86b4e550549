"""Checkpoints: folders of safetensors and JSON that are whole or absent.

save(folder / "step-000001000", tensors, document)
tensors, document = load_newest(folder)
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from crossbatch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

FORMAT = 1
PIECE = 1 << 20


def save(path: Path, tensors: dict[str, Tensor], document: dict[str, Any]) -> None:
    """Write a checkpoint folder under a temporary name, then rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    # Straight from the tensors' own memory: a copy of tables and moments may be a gigabyte.
    content = partial / "tensors.safetensors"
    save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, content)
    _sync(content)
    document = {"format": FORMAT, "crc32": _checksum(content)} | document
    write_durably(partial / "checkpoint.json", json.dumps(document, indent=1).encode())
    # An older folder of this name goes aside first, so that no moment is without a whole one.
    aside = path.with_name(f".{path.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if path.exists():
        path.rename(aside)
    partial.rename(path)
    _sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and verify a checkpoint.

    Raises:
        DataError: If it is missing, truncated, corrupted or of another format.
    """
    try:
        document = json.loads((path / "checkpoint.json").read_bytes())
        crc32 = _checksum(path / "tensors.safetensors")
    except (OSError, ValueError) as error:
        raise DataError(f"checkpoint {path} cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError(f"checkpoint {path} is not of format {FORMAT}; train anew")
    if crc32 != document.get("crc32"):
        raise DataError(f"checkpoint {path} is corrupted: its checksum does not match")
    try:
        return load_file(path / "tensors.safetensors"), document
    except (OSError, SafetensorError) as error:
        raise DataError(f"checkpoint {path} is corrupted: {error}") from None


def load_newest(
    folder: Path, say: Callable[[str], None]
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read the newest checkpoint that is whole, or None; a broken one is reported."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            return load(path)
        except DataError as error:
            say(f"{error}; trying the one before")
    return None


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, and what a kill left half-written."""
    for path in sorted(folder.glob("step-*"))[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def write_durably(path: Path, payload: bytes) -> None:
    """Write a file whose bytes are on disk when this returns."""
    with path.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, document: dict[str, Any] | list[Any]) -> None:
    """Replace a JSON file at once: readers see the old or the new one, never a part."""
    partial = path.with_name(f".{path.name}.partial")
    write_durably(partial, (json.dumps(document, indent=1) + "\n").encode())
    partial.replace(path)


def _checksum(path: Path) -> int:
    """CRC-32 of a file, a piece at a time."""
    crc32 = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            crc32 = zlib.crc32(piece, crc32)
    return crc32


def _sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
