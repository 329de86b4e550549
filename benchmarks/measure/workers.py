"""The driver's side of an interleaved run: processes that step when told."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


class Worker:
    """A process that serves rows (`peers/serve.py`); closing it ends it.

    Args:
        python: Interpreter of the row's environment.
        script: What to run.
        arguments: Its command line.
        threads: Threads that libraries may use.
        log: Where its standard error goes.
    """

    def __init__(
        self, python: Path, script: Path, arguments: Sequence[str], *, threads: int, log: Path
    ) -> None:
        self.name, self.log = script.stem, log
        limits = dict.fromkeys(THREAD_VARIABLES, str(threads))
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), str(script), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | limits,
            )
        hello = self._read()
        self.rows: list[str] = hello["rows"]
        self.versions: dict[str, str] = hello["versions"]

    def prepare(self, row: str, warmup: int) -> None:
        """Build a row and take its first, untimed steps."""
        self._ask(prepare=row, warmup=warmup)

    def steps(self, row: str, count: int) -> tuple[float, float]:
        """CPU and wall seconds of one of `count` steps."""
        answer = self._ask(steps=row, count=count)
        return answer["cpu"] / count, answer["wall"] / count

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, **request: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"worker {self.name} ended; see {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(slots=True)
class Row:
    """One line of the table and how it is timed.

    Attributes:
        label: Unique.
        worker: Who steps.
        name: What the worker calls it.
        count: Steps of a turn.
        cpu: Seconds per step, one entry a turn.
        wall: Likewise.
    """

    label: str
    worker: Worker
    name: str
    count: int
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def turn(self) -> None:
        """Take one turn."""
        cpu, wall = self.worker.steps(self.name, self.count)
        self.cpu.append(cpu)
        self.wall.append(wall)


def interleave(rows: Sequence[Row], rounds: int) -> None:
    """Every row once a round, the order turning, so that a busy machine slows all alike."""
    for number in range(rounds):
        shift = number % len(rows)
        for row in [*rows[shift:], *rows[:shift]]:
            row.turn()
        print(f"round {number + 1} of {rounds}", flush=True)
