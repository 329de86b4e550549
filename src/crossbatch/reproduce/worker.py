"""One run in a process of its own: `python -m crossbatch.reproduce.worker`, a cell on stdin.

The first line of stdin is the cell as JSON. When stdin closes, because the grid was stopped or its
process died, the run saves a checkpoint and ends: no worker outlives its grid, none loses a step.
"""

from __future__ import annotations

import _thread
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from crossbatch.errors import ConfigError, DataError

DONE, MISTAKE, BUSY, INTERRUPTED = 0, 2, 75, 130


def main() -> int:
    """Train the cell that stdin describes; the exit code says how it ended."""
    job = json.loads(sys.stdin.readline())
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
