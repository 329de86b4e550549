"""Popularity and item-kNN on the grid's test users, measured once by the models' own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.evaluation.baselines import evaluate_baselines
from crossbatch.evaluation.runs import in_paper
from crossbatch.files import read_document, write_document
from crossbatch.training.journal import without_nan

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset


def measure_baselines(dataset: Dataset, recipe: Recipe, out: Path) -> Path:
    """Write `baselines.json`, unless it is there for the same data and history length."""
    path = out / "baselines.json"
    about = {
        "checksum": dataset.manifest["checksum"],
        "history_length": recipe.train.history_length,
    }
    if path.is_file():
        known = read_document(path, "delete it to measure them again")
        if {key: known.get(key) for key in about} == about:
            return path
    found = evaluate_baselines(dataset, "test", history_length=recipe.train.history_length)
    document = about | {
        "baselines": {
            name: {
                "test": without_nan(evaluation.means()),
                "test_ci": {
                    key: [interval.low, interval.high]
                    for key, interval in evaluation.intervals().items()
                    if in_paper(key)
                },
            }
            for name, evaluation in found.items()
        }
    }
    return write_document(path, document)
