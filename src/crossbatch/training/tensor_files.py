"""Files of tensors, written straight from memory, and the checksum that vouches for them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

PIECE = 1 << 20


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors, straight from their own memory: a copy of tables may be a gigabyte."""
    plain = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    try:
        save_file(plain, path)
    except SafetensorError as error:  # which hides what the operating system said
        raise OSError(f"{path} could not be written: {error}") from None


def file_crc32(path: Path) -> int:
    """CRC-32 of a file, a piece at a time."""
    crc32 = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            crc32 = zlib.crc32(piece, crc32)
    return crc32
