"""Writing a large `.npy` piece by piece, with plain writes: memory stays that of one piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import DTypeLike


class ArrayWriter:
    """A one-dimensional `.npy` of known length, filled from its beginning.

    Args:
        path: The file to create.
        dtype: Type of the elements; written little-endian.
        length: How many elements will be appended in all.
    """

    def __init__(self, path: Path, dtype: DTypeLike, length: int) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._length, self._written = length, 0
        self._file = path.open("wb")
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (length,),
        }
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: np.ndarray) -> None:
        """Add the next values.  Shape `[n]`."""
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._written += len(values)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is None and self._written != self._length:
            raise RuntimeError(f"{self._written} of {self._length} elements were written")
