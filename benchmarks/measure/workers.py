"""Worker processes of an interleaved run, as seen by the driver."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN_SECONDS = 1.0
TURN_STEPS = 64  # our batches are assembled 64 at a time: a turn pays for exactly one block
BENCHMARKS = Path(__file__).parent.parent
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
        module: What to run, seen from the folder of the benchmarks.
        arguments: Its command line.
        threads: Threads that libraries may use.
        log: Where its standard error goes.
    """

    def __init__(
        self, python: Path, module: str, arguments: Sequence[str], *, threads: int, log: Path
    ) -> None:
        self.name, self.log = module, log
        limits = dict.fromkeys(THREAD_VARIABLES, str(threads))
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | limits,
                cwd=BENCHMARKS,
            )
        try:
            hello = self._read()
        except RuntimeError:
            self.close()
            raise
        self.rows: list[str] = hello["rows"]
        self.versions: dict[str, str] = hello["versions"]

    def prepare(self, row: str, warmup: int, seconds: float) -> None:
        """Build a row and take its first steps, untimed: `warmup`, or what the time allows."""
        self._ask(prepare=row, warmup=warmup, seconds=seconds)

    def steps(self, row: str, count: int, untimed: int = 0) -> tuple[float, float]:
        """CPU and wall seconds of one of `count` steps, after `untimed` ones."""
        answer = self._ask(steps=row, count=count, untimed=untimed)
        return answer["cpu"] / count, answer["wall"] / count

    def close(self) -> None:
        """End the process."""
        with self._process:  # closes its pipes, then waits
            pass

    def _ask(self, **request: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith("{"):
            if not line:  # other lines are output of a library
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
    count: int = 1
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def choose_count(self, count: int | None) -> None:
        """Make turns `count` steps long; None: about a second, at most a block of batches."""
        if count is None:
            cpu, _ = self.worker.steps(self.name, 2)
            count = min(TURN_STEPS, max(2, int(TURN_SECONDS / cpu)))
        self.count = count

    def turn(self) -> None:
        """Take one turn; untimed steps first replace what other rows left in the caches."""
        cpu, wall = self.worker.steps(self.name, self.count, untimed=self.count // 2)
        self.cpu.append(cpu)
        self.wall.append(wall)


def interleave(rows: Sequence[Row], rounds: int) -> None:
    """Time every row once per round, in rotating order, so that a busy machine slows all alike."""
    for number in range(rounds):
        shift = number % len(rows)
        for row in [*rows[shift:], *rows[:shift]]:
            row.turn()
        print(f"round {number + 1} of {rounds}", flush=True)
