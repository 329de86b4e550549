"""Train the runs of a grid, several at a time: finished ones stay, killed ones are resumed.

    outcome = run_grid(design.table1(), open_dataset("books"), Path("paper"), jobs=2)

Each run has a process of its own, forked from one that has imported torch once. Any number of grids
may share a folder: a run is locked by the process that trains it, and the others pass over it until
it is finished or free again.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import TYPE_CHECKING

from crossbatch.errors import ConfigError, DataError, out_of_memory
from crossbatch.files import read_document
from crossbatch.progress import progress_bars

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from crossbatch.data import Dataset
    from crossbatch.reproduce.design import PlannedRun

POLL_SECONDS = 0.5
DONE, FAILED, IN_USE = "done", "failed", "in use"
PRELOADED = ["crossbatch.data", "crossbatch.fitting"]


@dataclass(slots=True)
class GridOutcome:
    """How a grid ended."""

    finished: list[PlannedRun] = field(default_factory=list)  # also by other processes
    failed: dict[str, str] = field(default_factory=dict)  # what went wrong, by run folder
    interrupted: bool = False  # by a signal


def run_grid(
    runs: Sequence[PlannedRun], dataset: Dataset, out: Path, *, jobs: int = 1, quiet: bool = True
) -> GridOutcome:
    """Train all runs that have no result yet, in this order, `jobs` at a time on one thread each.

    The runs' folders are below `out`.
    """
    from crossbatch.training.run_folder import in_use

    check_runs(runs, dataset, out)
    outcome = GridOutcome()
    waiting = [run for run in runs if not run.is_finished(out)]
    training: list[_Training] = []

    def say(text: str) -> None:
        if not quiet:
            sys.stderr.write(f"{text}\n")

    try:
        with progress_bars(quiet=quiet) as bars, _stop_signals():
            while waiting or training:
                for run in list(waiting):
                    if len(training) < jobs and not in_use(out / run.folder):
                        waiting.remove(run)
                        if not run.is_finished(out):  # another grid was faster
                            training.append(_Training(run, dataset, out))
                time.sleep(POLL_SECONDS)
                for each in [each for each in training if not each.process.is_alive()]:
                    training.remove(each)
                    state, message = each.read_answer()
                    if state == DONE:
                        rest = [*(other.run for other in training), *waiting]
                        minutes = (minutes_left(runs, rest, out) or 0.0) / jobs
                        left = f"; about {duration_text(minutes)} left" if rest else ""
                        say(f"{_result_line(each.run, out)}{left}")
                    elif state == IN_USE:  # another grid was faster
                        waiting.append(each.run)
                    else:
                        outcome.failed[each.run.folder] = message
                        say(f"{each.run.folder} failed: {message.splitlines()[-1]}")
                bars("runs", len(runs) - len(training) - len(waiting), len(runs))
    except KeyboardInterrupt:
        outcome.interrupted = True
    finally:
        for each in training:
            each.stop()
        for each in training:
            each.process.join()
    outcome.finished = [run for run in runs if run.is_finished(out)]
    return outcome


def check_runs(runs: Sequence[PlannedRun], dataset: Dataset, out: Path) -> None:
    """Refuse a folder in `out` that holds another configuration, and name the difference."""
    from crossbatch.training.build import resolve
    from crossbatch.training.run_folder import changed_keys

    checksum = {"checksum": dataset.manifest["checksum"]}
    for run in runs:
        path = out / run.folder / "config.json"
        if not path.is_file():
            continue
        config = resolve(run.recipe, dataset).to_dict() | {"dataset": checksum}
        earlier = read_document(path, "train the run again")
        for key, before, value in changed_keys(earlier, config):
            raise ConfigError(
                f"{out / run.folder} was trained with {key} = {before!r}, not {value!r}; "
                "choose another --out, or give the options it began with"
            )


class _Training:
    """A run under way in its own process."""

    def __init__(self, run: PlannedRun, dataset: Dataset, out: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        # For the processes that start below; in this one torch has read them already.
        os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.run = run
        self.answer, answer = context.Pipe(duplex=False)
        job = (run, dataset.place, (out / run.folder).resolve(), answer)
        self.process = context.Process(target=_train_in_process, args=job)
        self.process.start()
        answer.close()

    def read_answer(self) -> tuple[str, str]:
        """How the run ended, and what went wrong."""
        try:
            state, message = self.answer.recv()
            return str(state), str(message)
        except EOFError:
            return FAILED, f"its process ended with code {self.process.exitcode}"

    def stop(self) -> None:
        """Ask for a checkpoint and the end."""
        if self.process.pid and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGINT)


@contextmanager
def _stop_signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, also where they were ignored before."""
    if threading.current_thread() is not threading.main_thread():  # which handles the signals
        yield
        return
    stop = signal.default_int_handler
    earlier = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _train_in_process(run: PlannedRun, data: str, out: Path, answer: connection.Connection) -> None:
    """Train one run and send how it ended; what it prints goes nowhere."""
    os.setsid()  # Ctrl-C reaches the grid alone, which then stops its runs
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 (a device, for its descriptor)
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    threading.Thread(target=_stop_with_the_grid, daemon=True).start()
    answer.send(_end_of_training(run, data, out))


def _end_of_training(run: PlannedRun, data: str, out: Path) -> tuple[str, str]:
    """Train or resume a run; return how it ended, and what went wrong."""
    from crossbatch.data import open_dataset
    from crossbatch.training import Interrupted, fit
    from crossbatch.training.run_folder import RunInUseError

    try:
        dataset, probe = open_dataset(data), None
        if run.probe:
            from crossbatch.reproduce.stability_probe import StabilityProbe

            probe = StabilityProbe(dataset, run.recipe)
        fit(dataset, run.recipe, out, resume=True, probe=probe, test=run.test)
        if not run.test:  # its numbers are all that is wanted of it
            shutil.rmtree(out / "best", ignore_errors=True)
    except (Interrupted, KeyboardInterrupt):
        return FAILED, "it was interrupted"
    except RunInUseError:
        return IN_USE, ""
    except (ConfigError, DataError, OSError) as error:  # a full disk among them
        return FAILED, str(error) or repr(error)
    except Exception as error:
        if out_of_memory(error):
            return FAILED, "there is not enough memory; its checkpoint is whole"
        return FAILED, traceback.format_exc()
    return DONE, ""


def _stop_with_the_grid() -> None:
    """Interrupt the run when the grid's process has ended, so that no run is trained unseen."""
    grid = multiprocessing.parent_process()
    if grid is not None:
        connection.wait([grid.sentinel])
        os.kill(os.getpid(), signal.SIGINT)


def minutes_left(
    runs: Sequence[PlannedRun], waiting: Sequence[PlannedRun], out: Path
) -> float | None:
    """Minutes that the waiting runs take one after another; None while no run is finished.

    A run is expected to take as long as finished ones of its model and sampler on average, else of
    its model, else of any.
    """
    taken: dict[tuple[str, ...], list[float]] = {}
    for run in runs:
        if run.is_finished(out):
            result = read_document(out / run.folder / "result.json", "train the run again")
            for kind in _kinds(run):
                taken.setdefault(kind, []).append(float(result["convergence_minutes"]))
    if not taken:
        return None
    return sum(
        next(statistics.fmean(taken[kind]) for kind in _kinds(run) if kind in taken)
        for run in waiting
    )


def _kinds(run: PlannedRun) -> list[tuple[str, ...]]:
    """Groups of similar runs that it belongs to, the smallest first."""
    model, sampler = run.recipe.model.name, str(run.recipe.sampler["name"])
    return [(model, sampler), (model,), ()]


def duration_text(minutes: float) -> str:
    """Minutes in print: "45 s", "12 min", "3 h 20 min"."""
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{int(minutes // 60)} h {int(minutes % 60)} min"


def _result_line(run: PlannedRun, out: Path) -> str:
    """What a finished run reached, and how long it took."""
    result = read_document(out / run.folder / "result.json", "train the run again")
    split, metric = "test" if run.test else "valid", run.recipe.train.metric
    return (
        f"{run.folder}: {split} {metric} {100 * result[split][metric]:.2f} %, best at step "
        f"{result['best_step']:,} of {result['steps']:,}, "
        f"{duration_text(result['convergence_minutes'])}"
    )
