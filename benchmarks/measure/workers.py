"""Worker processes of an interleaved run, as seen by the driver, and the peers' environments.

A peer has a virtual environment of its own, with pinned versions, created at first use.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN_SECONDS = 1.0
TURN_STEPS = 64  # our batches are assembled 64 at a time: a turn pays for exactly one block
BENCHMARKS = Path(__file__).parent.parent
ROOT = BENCHMARKS.parent
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


class Process:
    """A process that answers lines of JSON, one for one; closing it ends it.

    Args:
        command: What to run, seen from the folder of the benchmarks.
        threads: Threads that libraries may use.
        log: Where its standard error goes; to that of this process unless given.
        variables: Further variables of its environment.
    """

    def __init__(
        self, command: Sequence[str], *, threads: int, log: Path | None = None, **variables: str
    ) -> None:
        self.name, self.log = " ".join(command[1:3]), log
        limits = dict.fromkeys(THREAD_VARIABLES, str(threads))
        with nullcontext() if log is None else log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | limits | variables,
                cwd=BENCHMARKS,
            )

    def ask(self, request: object) -> Any:
        """Send a document, and wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> Any:
        """The next document that the process writes."""
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith(("{", "[")):
            if not line:  # other lines are output of a library
                raise RuntimeError(f"worker {self.name} ended; see {self.log or 'above'}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        with self._process:  # closes its pipes, then waits
            pass


class Worker(Process):
    """A process that serves rows (`peers/serve.py`).

    Args:
        python: Interpreter of the row's environment.
        module: What to run, seen from the folder of the benchmarks.
        arguments: Its command line.
        threads: Threads that libraries may use.
        log: Where its standard error goes.
        variables: Further variables of its environment.
    """

    def __init__(
        self,
        python: Path,
        module: str,
        arguments: Sequence[str],
        *,
        threads: int,
        log: Path,
        **variables: str,
    ) -> None:
        command = [str(python), "-m", module, *arguments]
        super().__init__(command, threads=threads, log=log, **variables)
        try:
            hello = self.read()
        except RuntimeError:
            self.close()
            raise
        self.rows: list[str] = hello["rows"]
        self.versions: dict[str, str] = hello["versions"]

    def prepare(self, row: str, warmup: int, seconds: float) -> None:
        """Build a row and take its first steps, untimed: `warmup`, or what the time allows."""
        self.ask({"prepare": row, "warmup": warmup, "seconds": seconds})

    def steps(self, row: str, count: int, untimed: int = 0) -> tuple[float, float]:
        """CPU and wall seconds of one of `count` steps, after `untimed` ones."""
        answer = self.ask({"steps": row, "count": count, "untimed": untimed})
        return answer["cpu"] / count, answer["wall"] / count


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


def peer_python(name: str, folder: Path = ROOT) -> Path:
    """The interpreter of `.venv-bench-{name}` in `folder`, with `requirements-{name}.txt` in it.

    The environment is made anew when the list has changed. Further arguments of pip, such as
    another index for torch, come from the variable `PIP_ARGS`.
    """
    home = folder / f".venv-bench-{name}"
    requirements = BENCHMARKS / "peers" / f"requirements-{name}.txt"
    python, ready = home / "bin" / "python", home / "ready"
    wanted = requirements.read_text()
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {requirements.name} into {home} …", flush=True)
        venv.create(home, with_pip=True, clear=True)
        # --no-deps: the list is complete, and nothing may bring another torch
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
        more = os.environ.get("PIP_ARGS", "").split()
        subprocess.run([*command, *more, "-r", str(requirements)], check=True)
        ready.write_text(wanted)
    return python
