"""The experiments by name: which runs each needs, and what is written from them.

    folder = GridFolder(Path("paper"))
    train("table1", design, folder, open_dataset("books"), jobs=2)
    write("table1", design, folder)

Writing needs no dataset: a table is made from all that its folder holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.files import read_document, write_document
from crossbatch.reproduce.curves import write_curves, write_drift, write_lemma
from crossbatch.reproduce.design import Design, PlannedRun, distinct
from crossbatch.reproduce.folder import GridFolder, keep_records
from crossbatch.reproduce.search import search_runs, write_search
from crossbatch.reproduce.tables import write_table1, write_table2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset
    from crossbatch.reproduce.grid import GridOutcome

WRITERS: dict[str, Callable[[GridFolder], list[Path]]] = {
    "table1": write_table1,
    "table2": write_table2,
    "curves": write_curves,
    "drift": write_drift,
    "lemma": write_lemma,
}
EXPERIMENTS = (*WRITERS, "search", "all")
# The paper's data: Amazon-Books by either of its readers, not a sample of it.
PAPER_FORMATS, PAPER_ITEMS = ("amazon", "comirec"), 300_000


def planned_runs(experiment: str, design: Design) -> list[PlannedRun]:
    """The runs that one of `EXPERIMENTS` needs."""
    match experiment:
        case "table1" | "curves":
            return design.table1()
        case "table2":
            return design.table2()
        case "drift" | "lemma":
            return design.probes()
        case "search":
            return search_runs(design)
    return distinct([*design.table1(), *design.table2(), *design.probes()])


def train(
    experiment: str,
    design: Design,
    folder: GridFolder,
    dataset: Dataset,
    *,
    jobs: int = 1,
    quiet: bool = True,
) -> GridOutcome:
    """Train what is missing, and measure the baselines."""
    from crossbatch.reproduce.grid import run_grid

    counts, source = dataset.manifest["counts"], dataset.manifest.get("source", {})
    facts = {key: counts[key] for key in ("users", "items", "interactions")}
    facts["eligible_samples"] = dataset.num_samples(design.base.train.min_history)
    books = source.get("format") in PAPER_FORMATS and facts["items"] > PAPER_ITEMS
    folder.add_facts(
        dataset={"name": dataset.path.resolve().name} | facts,
        budget=None if experiment == "search" else design.budget,
        paper=folder.facts.get("paper", books),
    )
    runs = planned_runs(experiment, design)
    outcome = run_grid(runs, dataset, folder.path, jobs=jobs, quiet=quiet)
    if not outcome.interrupted and experiment in ("table1", "all"):
        measure_baselines(dataset, design.base, folder.path)
    return outcome


def measure_baselines(dataset: Dataset, recipe: Recipe, out: Path) -> Path:
    """Measure popularity and item-kNN on the test users, by the models' own rules.

    Writes `baselines.json`, unless it is there for the same data and history length.
    """
    from crossbatch.evaluation.baselines import evaluate_baselines
    from crossbatch.evaluation.runs import split_entries

    path, history_length = out / "baselines.json", recipe.train.history_length
    measured_on = {"checksum": dataset.manifest["checksum"], "history_length": history_length}
    if path.is_file():
        known = read_document(path, "delete it to measure them again")
        if {key: known.get(key) for key in measured_on} == measured_on:
            return path
    found = evaluate_baselines(dataset, "test", history_length=history_length)
    baselines = {name: split_entries(evaluation, "test") for name, evaluation in found.items()}
    return write_document(path, {**measured_on, "baselines": baselines})


def write(experiment: str, design: Design, folder: GridFolder) -> list[Path]:
    """Write the experiment's files from the runs that its folder holds."""
    if experiment == "search":
        return write_search(design, folder)
    names = WRITERS if experiment == "all" else [experiment]
    return [path for name in names for path in WRITERS[name](folder)]


def keep(experiment: str, design: Design, folder: GridFolder, out: Path) -> list[Path]:
    """Copy the small records of the grid, and rebuild the experiment's files from them there."""
    records = keep_records(folder, out)
    if experiment == "search":  # whose pages are records themselves: its runs are not kept
        return records
    return records + write(experiment, design, GridFolder(out))
