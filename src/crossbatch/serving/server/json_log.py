"""Logs as one JSON object a line on standard error: for people with `jq`, and for collectors.

event("reloaded", slot="main", version="4f1c")
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

log = logging.getLogger("crossbatch.serving")


class JsonFormatter(logging.Formatter):
    """Formats a record with its `fields`, and with the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line: dict[str, Any] = {
            "time": _moment(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def event(name: str, level: int = logging.INFO, **fields: object) -> None:
    """Log one event with its fields."""
    log.log(level, name, extra={"fields": fields})


def request_line(request_id: str, method: str, path: str, status: int, seconds: float) -> None:
    """Log a request, past `logging`: its machinery would cost as much as parsing the request."""
    if log.isEnabledFor(logging.INFO):
        sys.stderr.write(
            f'{{"time":"{_moment(time.time())}","level":"{"error" if status >= 500 else "info"}",'
            f'"event":"request","id":"{request_id}","method":{json.dumps(method)},'
            f'"path":{json.dumps(path)},"status":{status},"ms":{1e3 * seconds:.2f}}}\n'
        )


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send our events from `level` on, and uvicorn's warnings, to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name, least in ((log.name, level), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
