"""The experiments by name: which runs each needs, and what is written from them.

    request = Request("table1", design, Path("paper"))
    train(request, open_dataset("books"), jobs=2, watcher=SilentWatcher())
    write(request)

Writing needs no dataset: a table is made from all that its folder holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossbatch.reproduce.design import SIZES, Cell, Design, distinct
from crossbatch.reproduce.search import STEPS, search_cells, write_search

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from crossbatch.data import Dataset
    from crossbatch.reproduce.grid import GridOutcome
    from crossbatch.reproduce.watch import Watcher


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for.

    Attributes:
        experiment: A key of `EXPERIMENTS`.
        design: What the runs share and vary.
        out: Folder of the grid.
        sizes: Bank sizes of Table 2, in batches.
        search_steps: Steps of a search run.
    """

    experiment: str
    design: Design
    out: Path
    sizes: Sequence[int] = SIZES
    search_steps: int = STEPS

    @property
    def cells(self) -> list[Cell]:
        """The runs that the experiment needs."""
        return EXPERIMENTS[self.experiment].cells(self)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Which runs an experiment needs and what it writes.

    Attributes:
        cells: The runs.
        write: Writes tables and figures; returns their files.
    """

    cells: Callable[[Request], list[Cell]]
    write: Callable[[Request], list[Path]]


def train(request: Request, dataset: Dataset, *, jobs: int, watcher: Watcher) -> GridOutcome:
    """Train what is missing."""
    from crossbatch.reproduce.grid import run_grid

    return run_grid(request.cells, dataset, request.out, jobs=jobs, watcher=watcher)


def write(request: Request) -> list[Path]:
    """Write the experiment's files from the runs that its folder holds."""
    return EXPERIMENTS[request.experiment].write(request)


def _all_cells(request: Request) -> list[Cell]:
    design = request.design
    return distinct([*design.table1(), *design.table2(request.sizes), *design.probes()])


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment(lambda request: request.design.table1(), lambda _: []),
    "table2": Experiment(lambda request: request.design.table2(request.sizes), lambda _: []),
    "curves": Experiment(lambda request: request.design.table1(), lambda _: []),
    "drift": Experiment(lambda request: request.design.probes(), lambda _: []),
    "lemma": Experiment(lambda request: request.design.probes(), lambda _: []),
    "search": Experiment(
        lambda request: search_cells(request.design, request.search_steps),
        lambda request: write_search(request.design, request.out, request.search_steps),
    ),
    "all": Experiment(_all_cells, lambda _: []),
}
