"""Safetensors files, written straight from memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors, straight from their own memory: a copy of tables may be a gigabyte."""
    plain = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    try:
        save_file(plain, path)
    except SafetensorError as error:  # which hides what the operating system said
        raise OSError(f"{path} could not be written: {error}") from None
