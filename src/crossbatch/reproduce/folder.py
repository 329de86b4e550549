"""`GridFolder`: the runs below one folder, and what is known of the data behind them.

    folder = GridFolder(Path("paper"))
    folder.runs("runs")            # every run of the grid, finished or not

`grid.json` holds what tables need to know and run folders do not say. A folder of records has the
runs packed in one file instead (`records.py`) and reads the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossbatch.errors import DataError
from crossbatch.files import read_document, write_document
from crossbatch.reports.runs import RUN_FILES, Run, read_run
from crossbatch.reproduce.design import STRATEGIES
from crossbatch.reproduce.records import RECORDS_FILE, unpacked_records

if TYPE_CHECKING:
    from pathlib import Path

RUN_NAME = re.compile(
    r"(?P<model>.+?)-(?P<strategy>[a-z_]+)(?:-M(?P<capacity>\d+))?-s(?P<seed>\d+)"
)


@dataclass(frozen=True, slots=True)
class RunName:
    """What a run's folder name says.

    Attributes:
        model: Of the run.
        strategy: A key of `STRATEGIES`.
        capacity: Bank size, where it is not the strategy's usual one.
        seed: Of the run.
    """

    model: str
    strategy: str
    capacity: int | None
    seed: int


def run_name(run: Run) -> RunName:
    """Read the name of a run's folder."""
    found = RUN_NAME.fullmatch(run.path.name)
    if found is None:
        raise DataError(
            f"{run.path} is no run of a grid: its name must be like youtube_dnn-in_batch-s0"
        )
    capacity = int(found["capacity"]) if found["capacity"] else None
    return RunName(found["model"], found["strategy"], capacity, int(found["seed"]))


@dataclass(frozen=True, slots=True)
class GridFolder:
    """A folder that a grid was trained in, or the records of one."""

    path: Path

    def runs(self, part: str = "runs") -> list[Run]:
        """The runs of a part ("runs", "probes" or "search") by name.

        Raises:
            DataError: If there are none.
        """
        home = self.path / part
        if not home.is_dir() and (self.path / RECORDS_FILE).is_file():
            home = unpacked_records(self.path) / part
        paths = sorted(home.iterdir()) if home.is_dir() else []
        found = [path for path in paths if any((path / name).is_file() for name in RUN_FILES)]
        if not found:
            raise DataError(f"{self.path / part} holds no run; train some with --data")
        return [read_run(path) for path in found]

    def table_runs(self) -> list[Run]:
        """The runs of Table 1: every model and strategy with its usual bank."""
        shown = {name for name, strategy in STRATEGIES.items() if strategy.in_table1}
        named = [(run, run_name(run)) for run in self.runs()]
        return [run for run, name in named if name.capacity is None and name.strategy in shown]

    @property
    def facts(self) -> dict[str, Any]:
        """What `grid.json` says."""
        return self._read("grid.json")

    @property
    def baselines(self) -> dict[str, Any]:
        """Metrics of popularity and item-kNN, if they were measured."""
        return dict(self._read("baselines.json").get("baselines", {}))

    def add_facts(self, **facts: Any) -> None:
        """Write facts into `grid.json`, over what it says of them."""
        write_document(self.path / "grid.json", self.facts | facts)

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        return read_document(path, "train the grid again") if path.is_file() else {}
