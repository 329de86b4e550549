"""`GridFolder`: the runs below one folder, and what it remembers of the data behind them.

    folder = GridFolder(Path("paper"))
    folder.runs("runs")            # every run of the grid, finished or not

`grid.json` holds what tables need to know and run folders do not say; it is written when a grid is
trained and kept with the records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossbatch.errors import DataError
from crossbatch.files import read_document, write_document
from crossbatch.reports.runs import RUN_FILES, Run, read_run

if TYPE_CHECKING:
    from pathlib import Path

# In print, and the colours that a whole Table 1 gives its strategies.
TITLES = {
    "uniform": "Uniform",
    "in_batch": "In-batch",
    "mixed": "Mixed (MNS)",
    "cross_batch": "Cross-batch, as published",
    "balanced": "Cross-batch, balanced",
    "auto": "Auto",
    "full": "Full softmax",
    "drift_limited": "Cross-batch, drift-limited",
    "safe_bank": "Cross-batch, drift-limited, 16 B",
    "sized_bank": "Cross-batch, drift-limited, no repeats",
    "spared": "In-batch, later items spared",
}
# What others are measured by: the bar's, not Table 1's.
BEYOND = ("full", "drift_limited", "safe_bank", "sized_bank")
COLORS = {strategy: number for number, strategy in enumerate(TITLES)}
RUN_NAME = re.compile(
    r"(?P<model>.+?)-(?P<strategy>[a-z_]+)(?:-M(?P<capacity>\d+))?-s(?P<seed>\d+)"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run stands in the grid, as its folder's name says.

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


def place_of(run: Run) -> Place:
    """Read the name of a run's folder."""
    found = RUN_NAME.fullmatch(run.path.name)
    if found is None:
        raise DataError(
            f"{run.path} is no run of a grid: its name must be like youtube_dnn-in_batch-s0"
        )
    capacity = found["capacity"]
    return Place(
        found["model"], found["strategy"], int(capacity) if capacity else None, int(found["seed"])
    )


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
        paths = sorted(home.iterdir()) if home.is_dir() else []
        found = [path for path in paths if any((path / name).is_file() for name in RUN_FILES)]
        if not found:
            raise DataError(f"{home} holds no run; train some with --data")
        return [read_run(path) for path in found]

    def table_runs(self) -> list[Run]:
        """The runs of Table 1: every model and strategy with its usual bank."""
        places = [(run, place_of(run)) for run in self.runs()]
        return [run for run, at in places if at.capacity is None and at.strategy not in BEYOND]

    @property
    def about(self) -> dict[str, Any]:
        """What `grid.json` says."""
        return self._read("grid.json")

    @property
    def baselines(self) -> dict[str, Any]:
        """Metrics of popularity and item-kNN, if they were measured."""
        return dict(self._read("baselines.json").get("baselines", {}))

    def remember(self, **facts: Any) -> None:
        """Write facts into `grid.json`, over what it says of them."""
        write_document(self.path / "grid.json", self.about | facts)

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        return read_document(path, "train the grid again") if path.is_file() else {}
