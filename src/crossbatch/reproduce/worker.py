"""Runs in processes of their own: `python -m crossbatch.reproduce.worker`, a cell a line on stdin.

Every line of stdin is a cell as JSON, every line of stdout the code that its run ended with. When
stdin closes, because the grid was stopped or its process died, the run saves a checkpoint and ends:
no worker outlives its grid, none loses a step.

Importing torch takes longer than many a short run. Where processes can be forked it is done once,
and each run has a fork of that process: as new as a process of its own, and as much by itself.
"""

from __future__ import annotations

import _thread
import json
import os
import shutil
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from crossbatch.errors import ConfigError, DataError, out_of_memory

DONE, FAILED, MISTAKE, BUSY, INTERRUPTED = 0, 1, 2, 75, 130
FORKS = sys.platform == "linux"  # elsewhere a worker ends with its first run


def main() -> int:
    """Train cells until stdin closes; the exit code is that of the last one."""
    code = DONE
    while line := sys.stdin.readline():
        code = _forked(line) if FORKS else _run(line)
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()
        if not FORKS:  # a thread is reading stdin now
            break
    return code


def _forked(line: str) -> int:
    """Run a cell in a fork of this process, which has nothing but imports behind it."""
    import crossbatch.data
    import crossbatch.fitting  # noqa: F401 (every fork has them)

    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            code = _run(line)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)  # what this process has at exit is the parent's business
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _run(line: str) -> int:
    """Train the cell that a line describes; the code says how it ended."""
    job = json.loads(line)
    threading.Thread(target=_stop_when_the_grid_does, daemon=True).start()
    from crossbatch.training import Interrupted
    from crossbatch.training.run_folder import RunInUseError

    try:
        train(job)
    except (Interrupted, KeyboardInterrupt):
        return INTERRUPTED
    except RunInUseError:
        return BUSY
    except (ConfigError, DataError, OSError) as error:  # a full disk among them
        sys.stderr.write(f"{error}\n")
        return MISTAKE
    except (ImportError, MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        sys.stderr.write("there is not enough memory; its checkpoint is whole\n")
        return MISTAKE
    return DONE


def train(job: dict[str, Any]) -> None:
    """Run or resume one cell.

    Args:
        job: `data` and `out` folders, the `recipe` as a dictionary, `probe` and `test`.
    """
    from crossbatch.config import Recipe
    from crossbatch.data import open_dataset
    from crossbatch.training import fit

    dataset, recipe = open_dataset(job["data"]), Recipe.from_dict(job["recipe"])
    probe = None
    if job["probe"]:
        from crossbatch.reproduce.probe import StabilityProbe

        probe = StabilityProbe(dataset, recipe)
    fit(dataset, recipe, job["out"], resume=True, probe=probe, test=job["test"])
    if not job["test"]:  # its numbers are all that is wanted of it
        shutil.rmtree(Path(job["out"]) / "best", ignore_errors=True)


def _stop_when_the_grid_does() -> None:
    # Not through sys.stdin, whose lock a thread must not hold when the interpreter ends.
    os.read(sys.stdin.fileno(), 1)
    _thread.interrupt_main()


if __name__ == "__main__":
    sys.exit(main())
