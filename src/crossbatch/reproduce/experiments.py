"""The experiments by name: which runs each needs, and what is written from them.

    request = Request("table1", design, GridFolder(Path("paper")))
    train(request, open_dataset("books"), jobs=2, watcher=SilentWatcher())
    write(request)

Writing needs no dataset: a table is made from all that its folder holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from crossbatch.reproduce.bar import write_bar
from crossbatch.reproduce.curves import write_curves
from crossbatch.reproduce.design import SIZES, Cell, Design, distinct
from crossbatch.reproduce.drift import write_drift
from crossbatch.reproduce.folder import GridFolder
from crossbatch.reproduce.lemma import write_lemma
from crossbatch.reproduce.search import search_cells, write_search
from crossbatch.reproduce.table1 import write_table1
from crossbatch.reproduce.table2 import write_table2

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
        folder: Of the grid.
        sizes: Bank sizes of Table 2, in batches.
        among: Settings that a search tries; empty for all.
    """

    experiment: str
    design: Design
    folder: GridFolder
    sizes: Sequence[int] = SIZES
    among: Sequence[str] = ()

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
    """Train what is missing, and measure the baselines."""
    from crossbatch.reproduce.baselines import measure_baselines
    from crossbatch.reproduce.grid import run_grid

    out = request.folder.path
    shortened = None if request.experiment == "search" else request.design.budget
    remember_data(request.folder, dataset, shortened)
    outcome = run_grid(request.cells, dataset, out, jobs=jobs, watcher=watcher)
    if not outcome.interrupted and request.experiment in WITH_BASELINES:
        measure_baselines(dataset, request.design.base, out)
    return outcome


def remember_data(folder: GridFolder, dataset: Dataset, budget: int | None) -> None:
    """Note in `grid.json` what the tables say of the data."""
    counts, source = dataset.manifest["counts"], dataset.manifest.get("source", {})
    facts = {key: counts[key] for key in ("users", "items", "interactions", "eligible_samples")}
    books = source.get("format") in PAPER_FORMATS and facts["items"] > PAPER_ITEMS
    folder.remember(
        dataset={"name": dataset.path.resolve().name} | facts,
        budget=budget,
        paper=folder.about.get("paper", books),
    )


def write(request: Request) -> list[Path]:
    """Write the experiment's files from the runs that its folder holds."""
    return EXPERIMENTS[request.experiment].write(request)


def keep(request: Request, out: Path) -> list[Path]:
    """Copy the small records of the grid, and rebuild the experiment's files from them there."""
    from crossbatch.reproduce.records import keep_records

    records = keep_records(request.folder, out)
    if request.experiment == "search":  # whose pages are records themselves: its runs are not kept
        return records
    return records + write(replace(request, folder=GridFolder(out)))


def _all_cells(request: Request) -> list[Cell]:
    design = request.design
    return distinct([*design.table1(), *design.table2(request.sizes), *design.probes()])


def _from_runs(*writers: Callable[[GridFolder], list[Path]]) -> Callable[[Request], list[Path]]:
    def write_all(request: Request) -> list[Path]:
        return [path for writer in writers for path in writer(request.folder)]

    return write_all


# The paper's data: Amazon-Books by either of its readers, not a sample of it.
PAPER_FORMATS, PAPER_ITEMS = ("amazon", "comirec"), 300_000
WITH_BASELINES = ("table1", "all")
EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment(lambda request: request.design.table1(), _from_runs(write_table1)),
    "table2": Experiment(
        lambda request: request.design.table2(request.sizes), _from_runs(write_table2)
    ),
    "curves": Experiment(lambda request: request.design.table1(), _from_runs(write_curves)),
    "drift": Experiment(lambda request: request.design.probes(), _from_runs(write_drift)),
    "lemma": Experiment(lambda request: request.design.probes(), _from_runs(write_lemma)),
    "bar": Experiment(lambda request: request.design.table1(), _from_runs(write_bar)),
    "search": Experiment(
        lambda request: search_cells(request.design, request.among),
        lambda request: write_search(request.design, request.folder),
    ),
    "all": Experiment(
        _all_cells, _from_runs(write_table1, write_table2, write_curves, write_drift, write_lemma)
    ),
}
