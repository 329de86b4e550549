"""How long the rest of a grid may take, from the runs that are finished."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossbatch.files import read_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crossbatch.reproduce.design import Cell


@dataclass(frozen=True, slots=True)
class Forecast:
    """Minutes of finished runs by kind: model and sampler, model alone, all."""

    known: Mapping[tuple[str, ...], float]

    @classmethod
    def of(cls, cells: Sequence[Cell], out: Path) -> Forecast:
        """Read the results that the grid already has."""
        minutes: dict[tuple[str, ...], list[float]] = {}
        for cell in cells:
            path = out / cell.folder / "result.json"
            if path.is_file():
                taken = float(read_document(path, "train the run again")["convergence_minutes"])
                for kind in _kinds(cell):
                    minutes.setdefault(kind, []).append(taken)
        return cls({kind: statistics.fmean(values) for kind, values in minutes.items()})

    def minutes(self, cells: Sequence[Cell]) -> float | None:
        """Minutes of one worker for `cells`; None while nothing is known."""
        if () not in self.known:
            return None
        return sum(
            next(self.known[kind] for kind in _kinds(cell) if kind in self.known) for cell in cells
        )


def _kinds(cell: Cell) -> list[tuple[str, ...]]:
    """From the most telling to the least."""
    model, sampler = cell.recipe.model.name, str(cell.recipe.sampler["name"])
    return [(model, sampler), (model,), ()]


def in_words(minutes: float) -> str:
    """Minutes in print: "45 s", "12 min", "3 h 20 min"."""
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{int(minutes // 60)} h {int(minutes % 60)} min"
