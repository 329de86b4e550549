"""`Journal`: one JSON object a line, append-only, readable while the run goes on."""

from __future__ import annotations

import json
import math
import os
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class Journal:
    """Events of a run in `journal.jsonl`.

    Args:
        path: The file; made if absent.
        length: Bytes to keep: a resumed run drops what was written after its checkpoint, because
            those steps happen again. Of a shorter file the whole lines are kept.

    Attributes:
        crc32: Checksum of all that the file holds.
    """

    def __init__(self, path: Path, length: int | None = None) -> None:
        self._file = path.open("ab")
        kept = path.read_bytes()
        if length is not None:
            kept = kept[:length]
            if len(kept) < length:
                kept = kept[: kept.rfind(b"\n") + 1]
            self._file.truncate(len(kept))
            self._file.seek(0, os.SEEK_END)
        self.crc32 = zlib.crc32(kept)

    def write(self, event: str, step: int, **fields: Any) -> None:
        """Append one event and hand it to the operating system."""
        line = json.dumps({"event": event, "step": step} | _plain(fields), allow_nan=False)
        payload = line.encode() + b"\n"
        self._file.write(payload)
        self._file.flush()
        self.crc32 = zlib.crc32(payload, self.crc32)

    def length(self) -> int:
        """Bytes so far, on disk for certain."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _plain(value: Any) -> Any:
    """NaN and infinity as null: they are not JSON."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
