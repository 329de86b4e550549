"""Runs `crossbatch` commands as forks of a process that has imported everything already.

A line of stdin is a job: {"argv": [...], "stderr": file, "inside": folder, "die_at": n or null,
"limits": {"RLIMIT_AS": bytes, ...}, "clock": seed or null}.
The answers are two lines: the process id at once, the exit code when it has ended. A job dies by
its own SIGKILL just before its n-th change to the file system below `inside`; without n it writes
the number of changes that it made to the end of `stderr`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

HEAVY = (
    "torch",
    "polars",
    "crossbatch.cli",
    "crossbatch.data",
    "crossbatch.serving",
    "crossbatch.fitting",
)
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "open"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Changes:
    """An audit hook that counts changes to a folder, and kills the process at one of them."""

    def __init__(self, inside: str, die_at: int | None) -> None:
        self.inside, self.die_at, self.count = inside, die_at, 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in CHANGES or not str(arguments[0]).startswith(self.inside):
            return
        if event == "open" and not int(str(arguments[2])) & WRITING:
            return
        self.count += 1
        if self.count == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def run(job: dict[str, object]) -> int:
    """Run one command and return its exit code."""
    from crossbatch.cli import main

    for name, value in job["limits"].items():  # type: ignore[attr-defined]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        base = pages * resource.getpagesize() if name == "RLIMIT_AS" else 0
        resource.setrlimit(getattr(resource, name), (base + value, base + value))
    if job["clock"] is not None:
        jumping = random.Random(job["clock"])  # type: ignore[arg-type]
        time.time = lambda: jumping.uniform(0, 2**32)
        time.time_ns = lambda: jumping.randrange(2**62)
    changes = Changes(str(job["inside"]), job["die_at"])  # type: ignore[arg-type]
    sys.addaudithook(changes)
    sys.argv = ["crossbatch", *map(str, job["argv"])]  # type: ignore[call-overload]
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.write(f"\nchanges {changes.count}\n")
    sys.stderr.flush()
    return code if isinstance(code, int) else 1


def main() -> None:
    """Serve jobs until stdin ends."""
    for name in HEAVY:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):  # an extra
        importlib.import_module("crossbatch.tuning.study")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            silent = os.open(os.devnull, os.O_RDWR)
            errors = os.open(job["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(silent, 0)
            os.dup2(silent, 1)
            os.dup2(errors, 2)
            os._exit(run(job))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
