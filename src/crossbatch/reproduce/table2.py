"""Table 2: what the size of the bank does, for each model.

    write_table2(GridFolder(Path("paper")))      # table2.md, .csv, .json, figures/table2.*

A bank of size 0 is in-batch sampling, to the bit, so those runs are Table 1's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossbatch.errors import DataError
from crossbatch.reports import formatting
from crossbatch.reports.comparison import Estimate, estimate
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.journal import Curve
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reports.plots import Line, Plot
from crossbatch.reports.variants import MODEL_NAMES, model_title, position
from crossbatch.reproduce import paper_numbers
from crossbatch.reproduce.design import strategy_color, strategy_title
from crossbatch.reproduce.folder import GridFolder, run_name
from crossbatch.reproduce.page import Figure, Page, run_links, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.reports.runs import Run

METRICS = ("recall@50", "ndcg_comirec@50", "ndcg@50")
BANKED = ("cross_batch", "balanced")
NOTE = (
    "Means over seeds ± sample standard deviation, in per cent; bold: best of the column. "
    "M = 0 is in-batch sampling, with its own settings; all other sizes have the settings of their "
    "strategy. #neg counts the batch's own columns, as the paper does."
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One model with a bank of one size, over its seeds."""

    model: str
    strategy: str
    capacity: int
    batch_size: int
    runs: tuple[Run, ...]

    def metric(self, key: str) -> Estimate | None:
        """Mean and spread of a test metric over the finished seeds."""
        return estimate(run.metrics().get(key) for run in self.runs)


def write_table2(folder: GridFolder) -> list[Path]:
    """Write the table from all runs that the folder holds."""
    entries = read_entries(folder)
    parts = []
    for strategy in BANKED:
        mine = [entry for entry in entries if entry.strategy == strategy]
        if mine:
            parts += [f"## {strategy_title(strategy)}", _table(mine, folder), _links(mine, folder)]
    if not parts:
        raise DataError(f"{folder.path / 'runs'} holds no run with a bank; train some with --data")
    parts.append(NOTE)
    rows = [_row_numbers(entry) for entry in entries]
    figure = Figure("table2", _plots(entries), 3, "Test recall@50 by number of negatives.")
    return write_page(folder, Page("table2", "Table 2", parts, rows, [figure]))


def read_entries(folder: GridFolder) -> list[Entry]:
    """The grid's banked runs by model, strategy and size; in-batch runs stand in for size 0."""
    groups: dict[tuple[str, str, int, int], list[Run]] = {}
    runs = folder.runs()
    banked = [s for s in BANKED if any(run_name(run).strategy == s for run in runs)]
    for run in runs:
        name = run_name(run)
        capacity = int(run.config.get("sampler", {}).get("capacity", 0))
        batch_size = int(run.config.get("train", {}).get("batch_size", 0))
        homes = banked if name.strategy == "in_batch" else [name.strategy]
        for strategy in homes:
            if strategy in BANKED:
                key = (name.model, strategy, capacity, batch_size)
                groups.setdefault(key, []).append(run)
    order = sorted(
        groups, key=lambda key: (BANKED.index(key[1]), position(key[0], MODEL_NAMES), key[2])
    )
    return [Entry(*key, tuple(groups[key])) for key in order]


def _table(entries: Sequence[Entry], folder: GridFolder) -> str:
    models = list(dict.fromkeys(entry.model for entry in entries))
    sizes = sorted({(entry.capacity, entry.batch_size) for entry in entries})
    found = {(entry.capacity, entry.model): entry for entry in entries}
    beside = bool(folder.facts.get("paper")) and entries[0].strategy == "cross_batch"
    heads = ["M", "#neg"]
    for model in models:
        name = model_title(model)
        heads += [f"{name}, {metric_name(key)}" for key in METRICS]
        heads += [f"{name}, paper's Recall / NDCG"] if beside else []
    best = _best(entries)
    lines = []
    for capacity, batch_size in sizes:
        line = [str(capacity), str(capacity + batch_size)]
        for model in models:
            entry = found.get((capacity, model))
            for key in METRICS:
                value = entry.metric(key) if entry else None
                bold = "**" if value is not None and value.mean == best[model, key] else ""
                line.append(f"{bold}{formatting.percent(value)}{bold}")
            if beside:
                pair = paper_numbers.TABLE2.get(capacity, {}).get(model)
                line.append(f"{pair[0]:.2f} / {pair[1]:.2f}" if pair else formatting.NOTHING)
        lines.append(line)
    return pipe_table([literal(head) for head in heads], lines, words=0)


def _best(entries: Sequence[Entry]) -> dict[tuple[str, str], float]:
    """The best mean of each model in each metric."""
    best: dict[tuple[str, str], float] = {}
    for entry in entries:
        for key in METRICS:
            value = entry.metric(key)
            if value is not None:
                best[entry.model, key] = max(value.mean, best.get((entry.model, key), value.mean))
    return best


def _links(entries: Sequence[Entry], folder: GridFolder) -> str:
    """The runs behind each cell, by seed."""
    models = list(dict.fromkeys(entry.model for entry in entries))
    found = {(entry.capacity, entry.model): entry for entry in entries}
    heads = ["Runs by seed: M", *(literal(model_title(model)) for model in models)]
    lines = []
    for capacity in sorted({entry.capacity for entry in entries}):
        row = (found.get((capacity, model)) for model in models)
        links = [run_links(entry.runs, folder) if entry else formatting.NOTHING for entry in row]
        lines.append([str(capacity), *links])
    return pipe_table(heads, lines, words=len(heads))


def _plots(entries: Sequence[Entry]) -> list[Plot]:
    """Recall by number of negatives, a panel a model, a line a strategy."""
    plots = []
    for model in dict.fromkeys(entry.model for entry in entries):
        lines = []
        for strategy in BANKED:
            points = [
                (entry.capacity + entry.batch_size, value)
                for entry in entries
                if (entry.model, entry.strategy) == (model, strategy)
                and (value := entry.metric("recall@50"))
            ]
            if points:
                curve = Curve(
                    tuple(float(x) for x, _ in points),
                    tuple(100 * value.mean for _, value in points),
                )
                spreads = [100 * (value.spread or 0.0) for _, value in points]
                line = Line(
                    strategy_title(strategy),
                    "",
                    curve,
                    strategy_color(strategy),
                    best=curve.y.index(max(curve.y)),
                    intervals=[(y - s, y + s) for y, s in zip(curve.y, spreads, strict=True)],
                )
                lines.append(line)
        if lines:
            axes = (model_title(model), "negatives per row", "Test recall@50, %")
            plots.append(Plot("table2", *axes, lines, log_x=True))
    return plots


def _row_numbers(entry: Entry) -> dict[str, Any]:
    return {
        "model": entry.model,
        "strategy": entry.strategy,
        "capacity": entry.capacity,
        "negatives": entry.capacity + entry.batch_size,
        "seeds": [run.seed for run in entry.runs if run.finished],
        "runs": [f"{run.path.parent.name}/{run.path.name}" for run in entry.runs],
        "metrics": {
            key: value.as_dict() for key in METRICS if (value := entry.metric(key)) is not None
        },
    }
