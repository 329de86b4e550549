"""Does the rule of `auto` choose a bank where one pays? Each data set judged by the others alone.

    python benchmarks/bank_rule.py results/bank/book-1m.json results/bank/beauty.json …

A cell of the map (`bank_map.py`) is a data set, a tower, a number of samples and a batch size. A
bank *pays* in a cell if it gains more than `NOISE` of validation recall@50 over in-batch negatives
with as many samples. The rule wants items that are rows of a table, at least as many equally likely
ones, 1/Σq², as the bank has rows, so that it hardly holds one twice, and a small batch. For each
data set the largest batch is the one that makes the fewest mistakes on the *other* data sets; its
cells then show what the rule would have chosen, beside the best choice by hand, which is the best
on validation users.
The metrics shown are of test users.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from bank_map import IDS, TOWERS, measured_cells

NOISE = 0.02  # of validation recall@50: two trainings with other seeds differ by as much
SIZE = 2432
IN_BATCH, BANK = "in-batch", "deferred"


class Cell(NamedTuple):
    """A data set, tower, number of samples and batch size: quality of each kind of negatives."""

    data: str
    tower: str
    samples: int
    batch: int
    likely_items: float  # 1/Σq² of the data set
    rules: dict[str, dict[str, Any]]

    @property
    def gain(self) -> float:
        """Of the bank over in-batch negatives, in validation recall@50."""
        return self.valid(BANK) / self.valid(IN_BATCH) - 1

    @property
    def best(self) -> str:
        """The best of both by hand, on validation users."""
        return max((IN_BATCH, BANK), key=self.valid)

    def valid(self, rule: str) -> float:
        """Mean validation recall@50 over seeds."""
        return statistics.fmean(self.rules[rule]["valid"])

    def test(self, rule: str, metric: str) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.rules[rule][metric])


class Limits(NamedTuple):
    """The rule: a bank for batches up to `batch` rows and from `likely_items` on."""

    batch: int
    likely_items: int = SIZE

    def choose(self, cell: Cell) -> str:
        """The kind of negatives for a cell."""
        fits = cell.batch <= self.batch and cell.likely_items >= self.likely_items
        return BANK if fits and allows_bank(cell.tower) else IN_BATCH


def allows_bank(tower: str) -> bool:
    """Whether items are rows of a table, which share no weights, and a user is one vector."""
    return TOWERS[tower].items() >= IDS.items() and TOWERS[tower]["name"] != "recent_items"


def read_cells(paths: list[Path]) -> list[Cell]:
    """The cells of some maps in which both kinds of negatives were trained, with ids."""
    found = []
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        groups: dict[tuple[str, int, int], dict[str, dict[str, Any]]] = {}
        for cell in measured_cells(document["runs"]):
            rules = groups.setdefault((cell["tower"], cell["samples"], cell["batch"]), {})
            if cell["size"] == SIZE or cell["rule"] not in rules:  # of several banks, that size
                rules[cell["rule"]] = cell
        for key, rules in groups.items():
            if {IN_BATCH, BANK} <= rules.keys():
                found.append(Cell(path.stem, *key, document["likely_items"], rules))
    return found


def fit(cells: list[Cell]) -> Limits:
    """The largest batch with the fewest mistakes; of equally good ones the smallest."""
    batches = sorted({0, *(cell.batch for cell in cells)})
    return min(map(Limits, batches), key=lambda limits: mistakes(limits, cells))


def mistakes(limits: Limits, cells: list[Cell]) -> int:
    """In how many cells the rule uses a bank that does not pay, or leaves out one that does."""
    return sum((limits.choose(cell) == BANK) != (cell.gain > NOISE) for cell in cells)


def judged(cells: list[Cell]) -> list[tuple[Cell, Limits]]:
    """Every cell with the limits that follow from the other data sets."""
    names = dict.fromkeys(cell.data for cell in cells)
    known = {name: fit([cell for cell in cells if cell.data != name]) for name in names}
    return [(cell, known[cell.data]) for cell in cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("maps", type=Path, nargs="+")
    cells = read_cells(parser.parse_args().maps)
    print("limits from all data sets:", fit(cells))
    print("| data | tower | samples | batch | bank's gain | rule chooses | best by hand | lost |")
    print("|---|---|---|---|---|---|---|---|")
    for cell, limits in judged(cells):
        choice = limits.choose(cell)
        lost = cell.test(choice, "recall@50") / cell.test(cell.best, "recall@50") - 1
        print(
            f"| {cell.data} | {cell.tower} | {cell.samples:,} | {cell.batch} | {cell.gain:+.1%} | "
            f"{choice} | "
            f"{cell.best} | {lost:+.1%} |"
        )


if __name__ == "__main__":
    main()
