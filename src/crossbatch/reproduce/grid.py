"""Train the cells of a grid in worker processes: what is finished stays, what was killed goes on.

    outcome = run_grid(design.table1(), Path("books"), Path("paper"), jobs=2)

Any number of grids may work on one folder: a run is locked by the process that trains it, and the
others pass over it until it is finished or free again.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from crossbatch.errors import ConfigError
from crossbatch.files import read_document
from crossbatch.reproduce import worker
from crossbatch.training.build import resolve
from crossbatch.training.run_folder import changed_keys, in_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from crossbatch.data import Dataset
    from crossbatch.reproduce.design import Cell
    from crossbatch.reproduce.watch import Watcher

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
TICK = 0.5  # seconds between looks at the workers


@dataclass(slots=True)
class GridOutcome:
    """How a grid ended.

    Attributes:
        finished: Cells that have a result, whoever trained them.
        failed: What went wrong, by cell folder.
        interrupted: Whether somebody stopped it.
    """

    finished: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False


class _Worker:
    """A process that trains one cell after another."""

    def __init__(self) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the worker)
        self.process = subprocess.Popen(  # noqa: S603 (our own module)
            [sys.executable, "-m", worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches the grid alone, which then stops its workers
        )
        self.cell: Cell | None = None

    def begin(self, cell: Cell, dataset: Dataset, out: Path) -> None:
        """Hand over a cell."""
        job = {
            "data": str(dataset.path.resolve()),
            "out": str((out / cell.folder).resolve()),
            "recipe": cell.recipe.to_dict(),
            "probe": cell.probe,
            "test": cell.test,
        }
        self.errors.seek(0)  # both processes have one position in the file
        self.errors.truncate()
        self.cell = cell
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> int | None:
        """The code that its cell ended with; None while it is training."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], 0)[0]:
            return None
        line = self.process.stdout.readline()
        return int(line) if line else self.process.wait()  # killed

    def complaint(self, code: int) -> str:
        """What it wrote about a cell that went wrong."""
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace").strip()
        return text or f"its process ended with code {code}"

    @property
    def alive(self) -> bool:
        """Whether it can be given another cell."""
        return worker.FORKS and self.process.poll() is None

    def stop(self) -> None:
        """Ask for a checkpoint and the end."""
        if self.process.stdin:
            self.process.stdin.close()

    def wait(self) -> None:
        """Until it has ended, which `stop` has asked it to."""
        assert self.process.stdout is not None
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def check_cells(cells: Sequence[Cell], dataset: Dataset, out: Path) -> None:
    """Refuse to mix runs: a folder that holds another configuration is named with the difference.

    Raises:
        ConfigError: At the first run in `out` that another command made.
    """
    checksum = {"checksum": dataset.manifest["checksum"]}
    for cell in cells:
        path = out / cell.folder / "config.json"
        if not path.is_file():
            continue
        config = resolve(cell.recipe, dataset).to_dict() | {"dataset": checksum}
        earlier = read_document(path, "train the run again")
        for key, before, value in changed_keys(earlier, config):
            raise ConfigError(
                f"{out / cell.folder} was trained with {key} = {before!r}, not {value!r}; "
                "choose another --out, or give the options it began with"
            )


def run_grid(
    cells: Sequence[Cell], dataset: Dataset, out: Path, *, jobs: int, watcher: Watcher
) -> GridOutcome:
    """Train all cells that have no result yet.

    Args:
        cells: What to train, in this order.
        dataset: What to train on.
        out: Folder that the cells' folders are below of.
        jobs: Workers at a time, of one thread each.
        watcher: Is told what happens.
    """
    check_cells(cells, dataset, out)
    outcome = GridOutcome()
    waiting = [cell for cell in cells if not cell.is_finished(out)]
    workers: list[_Worker] = []
    watcher.begin(cells, waiting)
    try:
        with _stop_signals():
            while waiting or _busy(workers):
                _start_some(waiting, workers, dataset, out, jobs)
                time.sleep(TICK)
                _reap(workers, waiting, outcome, watcher)
                watcher.tick(_busy(workers), waiting)
    except KeyboardInterrupt:
        outcome.interrupted = True
    finally:
        for each in workers:
            each.stop()
        for each in workers:
            each.wait()
        watcher.end()
    outcome.finished = [cell for cell in cells if cell.is_finished(out)]
    return outcome


def _busy(workers: Sequence[_Worker]) -> list[Cell]:
    return [each.cell for each in workers if each.cell]


@contextmanager
def _stop_signals() -> Iterator[None]:
    """Ctrl-C and a polite kill are the same, even where a shell told us to ignore the first."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        earlier = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    except ValueError:  # not the main thread: whoever runs it handles its signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _start_some(
    waiting: list[Cell], workers: list[_Worker], dataset: Dataset, out: Path, jobs: int
) -> None:
    """Start the first free cells; forget those that somebody else has finished."""
    for cell in list(waiting):
        if len(_busy(workers)) >= jobs:
            return
        if cell.is_finished(out):
            waiting.remove(cell)
        elif not in_use(out / cell.folder):
            waiting.remove(cell)
            idle = next((each for each in workers if not each.cell and each.alive), None)
            if idle is None:
                workers.append(idle := _Worker())
            idle.begin(cell, dataset, out)


def _reap(
    workers: list[_Worker], waiting: list[Cell], outcome: GridOutcome, watcher: Watcher
) -> None:
    """Take note of cells that have ended, and part with workers that take no other."""
    for each in list(workers):
        cell, code = each.cell, each.answer() if each.cell else None
        if cell is None or code is None:
            continue
        if code == worker.DONE:
            watcher.finished(cell)
        elif code == worker.BUSY:  # another grid was faster
            waiting.append(cell)
        else:
            outcome.failed[cell.folder] = each.complaint(code)
            watcher.failed(cell, outcome.failed[cell.folder])
        each.cell = None
        if not each.alive:
            workers.remove(each)
            each.stop()
            each.wait()
