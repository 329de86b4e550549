"""Commands that can be killed: `Commands` starts them cheaply, `Ended` says how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PATIENCE = 3600.0  # seconds; a busy machine may pause a process for very long


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: Exit code; −9 after a kill.
        seconds: Wall time.
        stderr: What it said, without the count of changes.
        changes: How often it changed the file system; None of one that was killed.
    """

    code: int
    seconds: float
    stderr: str
    changes: int | None

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Commands:
    """A process that forks commands.

    Args:
        folder: Where commands write, and where this class keeps their stderr.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stderr = folder / "stderr"

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert self._answer() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(PATIENCE)
        self._server.stdout.close()

    def run(
        self,
        *argv: object,
        kill_after: float | None = None,
        how: signal.Signals = signal.SIGKILL,
        descendants: bool = False,
        die_at: int | None = None,
        limits: dict[str, int] | None = None,
        clock: float | None = None,
    ) -> Ended:
        """Run a command to its end.

        Args:
            argv: Arguments of `crossbatch`.
            kill_after: Seconds until it is killed, if it still runs.
            how: By which signal.
            descendants: Whether the processes that it started die with it, as in a power failure.
            die_at: The change to the file system before which it kills itself.
            limits: By name in `resource`; of memory, how much more than it has at its start.
            clock: Seed of a wall clock that jumps by years.
        """
        assert self._server.stdin is not None
        self._stderr.write_text("")  # there, even if the command dies before it opens it
        job = {
            "argv": [str(argument) for argument in argv],
            "stderr": str(self._stderr),
            "inside": str(self.folder),
            "die_at": die_at,
            "limits": limits or {},
            "clock": clock,
        }
        began = time.monotonic()
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        pid = int(self._answer())
        limit = PATIENCE if kill_after is None else kill_after
        killer = threading.Timer(limit, _kill, (pid, how, descendants))
        killer.start()
        code = int(self._answer())
        killer.cancel()
        text, _, count = self._stderr.read_text().partition("\nchanges ")
        return Ended(code, time.monotonic() - began, text, int(count) if count else None)

    def _answer(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()


def _kill(pid: int, how: signal.Signals, descendants: bool) -> None:
    for victim in (pid, *(_descendants(pid) if descendants else ())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, how)


def _descendants(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    children = [int(word) for word in listed.read_text().split()] if listed.exists() else []
    return [each for child in children for each in (child, *_descendants(child))]
