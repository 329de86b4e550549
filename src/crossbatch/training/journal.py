"""`Journal`: the events of a run, one JSON object a line, readable while the run is training."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Listener = Callable[[str, int, dict[str, Any]], None]  # event, step, fields


class Journal:
    """Events of a run in `journal.jsonl`, append-only.

    Args:
        path: The file, made if absent; None for a process that writes nothing.
        length: Bytes to keep: a resumed run drops what was written after its checkpoint, because
            those steps happen again. Of a shorter file the complete lines are kept.
        listeners: Called with every event after it was written.

    Attributes:
        crc32: Checksum of the file's content.
    """

    def __init__(
        self, path: Path | None, length: int | None = None, listeners: tuple[Listener, ...] = ()
    ) -> None:
        self._listeners = listeners
        self._file = None if path is None else path.open("ab")
        kept = b"" if path is None else path.read_bytes()
        if self._file is not None and length is not None:
            kept = kept[:length]
            if len(kept) < length:
                kept = kept[: kept.rfind(b"\n") + 1]
            self._file.truncate(len(kept))
            self._file.seek(0, os.SEEK_END)
        self.crc32 = zlib.crc32(kept)

    def write(self, event: str, step: int, **fields: Any) -> None:
        """Append one event and hand it to the operating system and to the listeners."""
        if self._file is not None:
            document = {"event": event, "step": step} | without_nan(fields)
            payload = json.dumps(document, allow_nan=False).encode() + b"\n"
            self._file.write(payload)
            self._file.flush()
            self.crc32 = zlib.crc32(payload, self.crc32)
        for listener in self._listeners:
            listener(event, step, fields)

    def length(self) -> int:
        """Bytes so far, on disk for certain."""
        if self._file is None:
            return 0
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def without_nan(value: Any) -> Any:
    """The value with NaN and infinity, which are not JSON, as None."""
    if isinstance(value, dict):
        return {key: without_nan(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
