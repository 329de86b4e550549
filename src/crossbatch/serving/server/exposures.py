"""The exposure log: what was shown to whom, as JSON lines, and which bundle a key is answered by.

One line for each list: time, request id, slot and version of the bundle, ids and scores of items.
Histories, user features and keys are not in it; `--log-histories` adds the history.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from crossbatch.errors import ConfigError
from crossbatch.serving.server.line_writer import LineWriter

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.serving.server.answers import Answer
    from crossbatch.serving.server.messages import RecommendRequest
    from crossbatch.serving.server.run import ServeOptions

STDOUT = 1  # its file descriptor


def key_share(key: str) -> float:
    """A number in [0, 1) that depends on the key alone, and is uniform over keys."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2.0**56


class Exposures:
    """Appends a line for each list that was shown; never waits for the disk."""

    def __init__(self, options: ServeOptions) -> None:
        assert options.exposure_log is not None
        self._histories = options.log_histories
        self._descriptor = open_log(options.exposure_log)
        self._writer = LineWriter(self._descriptor)

    def write(self, query: RecommendRequest, answer: Answer, request: str, *, shadow: bool) -> None:
        """Queue the line of one answer."""
        assert answer.served is not None
        bundle = answer.served.bundle
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": request,
            "slot": query.bundle,
            "bundle": bundle.version,
            "items": bundle.item_keys(answer.item_ids),
            "scores": [round(score, 6) for score in answer.scores],
        }
        if shadow:
            line["shadow"] = True
        if self._histories:
            line["history"] = query.history
        self._writer.write(json.dumps(line) + "\n")  # ASCII: stdout may be a terminal

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()
        os.close(self._descriptor)


def open_log(path: Path) -> int:
    """Open a file to append lines to, and end a line that a kill has cut short; "-" is stdout.

    Raises:
        ConfigError: If it cannot be written.
    """
    if str(path) == "-":
        return os.dup(STDOUT)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise ConfigError(
            f"--exposure-log {path} cannot be written ({error.strerror}): choose another file"
        ) from None
    facts = os.fstat(descriptor)
    lines = stat.S_ISREG(facts.st_mode) and facts.st_size > 0
    if lines and os.pread(descriptor, 1, facts.st_size - 1) != b"\n":
        os.write(descriptor, b"\n")
    return descriptor
