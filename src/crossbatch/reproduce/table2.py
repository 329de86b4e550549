"""Table 2: what the size of the bank does, for each model.

    write_table2(GridFolder(Path("paper")))      # table2.md, .csv, .json, figures/table2.*

A bank of size 0 is in-batch sampling, to the bit, so those runs are Table 1's.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

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
from crossbatch.reproduce.page import Figure, run_links, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.reports.runs import Run

METRICS = ("recall@50", "ndcg_comirec@50", "ndcg@50")
BANKED = ("cross_batch", "balanced", "deferred")
NOTE = (
    "Means over seeds ± sample standard deviation, in per cent; bold: best of the column. "
    "M = 0 is in-batch sampling, with its own settings; all other sizes have the settings of their "
    "strategy. #neg counts the batch's own columns, as the paper does."
)


class Entry(NamedTuple):
    """One model with a bank of one size, over its seeds."""

    model: str
    strategy: str
    capacity: int
    batch_size: int
    runs: list[Run]

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
            parts += [f"## {strategy_title(strategy)}", *_tables(mine, folder)]
    if not parts:
        raise DataError(f"{folder.path / 'runs'} holds no run with a bank; train some with --data")
    parts.append(NOTE)
    rows = [_row_numbers(entry) for entry in entries]
    figure = Figure("table2", _plots(entries), 3, "Test recall@50 by number of negatives.")
    return write_page(folder, "table2", "Table 2", parts, rows, figure)


def read_entries(folder: GridFolder) -> list[Entry]:
    """The grid's banked runs by model, strategy and size; in-batch runs stand in for size 0."""
    groups: dict[tuple[str, str, int, int], list[Run]] = {}
    named = [(run, run_name(run)) for run in folder.runs()]
    banked = [strategy for strategy in BANKED if any(n.strategy == strategy for _, n in named)]
    for run, name in named:
        capacity = int(run.config.get("sampler", {}).get("capacity", 0))
        batch_size = int(run.config.get("train", {}).get("batch_size", 0))
        for strategy in banked:
            if name.strategy in (strategy, "in_batch"):
                key = (name.model, strategy, capacity, batch_size)
                groups.setdefault(key, []).append(run)
    entries = [Entry(*key, runs) for key, runs in groups.items()]
    return sorted(
        entries, key=lambda e: (BANKED.index(e[1]), position(e[0], MODEL_NAMES), e.capacity)
    )


def _tables(entries: Sequence[Entry], folder: GridFolder) -> list[str]:
    """The metrics of one strategy by bank size, and the runs behind them by seed."""
    models = list(dict.fromkeys(entry.model for entry in entries))
    found = {(entry.capacity, entry.model): entry for entry in entries}
    beside = bool(folder.facts.get("paper")) and entries[0].strategy == "cross_batch"
    heads = ["M", "#neg"]
    for name in map(model_title, models):
        heads += [f"{name}, {metric_name(key)}" for key in METRICS]
        heads += [f"{name}, paper's Recall / NDCG"] if beside else []
    best: dict[tuple[str, str], float] = {}
    for entry, key in product(entries, METRICS):
        if value := entry.metric(key):
            best[entry.model, key] = max(value.mean, best.get((entry.model, key), 0.0))
    lines, links = [], []
    for capacity, batch_size in sorted({(entry.capacity, entry.batch_size) for entry in entries}):
        line, linked = [str(capacity), str(capacity + batch_size)], [str(capacity)]
        for model in models:
            runs = found[capacity, model].runs if (capacity, model) in found else []
            for key in METRICS:
                value = estimate(run.metrics().get(key) for run in runs)
                bold = "**" if value and value.mean == best[model, key] else ""
                line.append(f"{bold}{formatting.percent(value)}{bold}")
            if beside:
                pair = paper_numbers.TABLE2.get(capacity, {}).get(model)
                line.append(f"{pair[0]:.2f} / {pair[1]:.2f}" if pair else formatting.NOTHING)
            linked.append(run_links(runs, folder) or formatting.NOTHING)
        lines.append(line)
        links.append(linked)
    run_heads = ["Runs by seed: M", *(literal(model_title(model)) for model in models)]
    return [
        pipe_table([literal(head) for head in heads], lines, words=0),
        pipe_table(run_heads, links, words=len(run_heads)),
    ]


def _plots(entries: Sequence[Entry]) -> list[Plot]:
    """Recall by number of negatives, a panel a model, a line a strategy."""
    lines: dict[str, list[Line]] = {}
    for model, strategy in dict.fromkeys((entry.model, entry.strategy) for entry in entries):
        points = [
            (float(entry.capacity + entry.batch_size), 100 * value.mean, 100 * (value.spread or 0))
            for entry in entries
            if entry[:2] == (model, strategy) and (value := entry.metric("recall@50"))
        ]
        if points:
            x, y, _ = zip(*points, strict=True)
            best, intervals = y.index(max(y)), [(mean - sd, mean + sd) for _, mean, sd in points]
            title, color = strategy_title(strategy), strategy_color(strategy)
            line = Line(title, "", Curve(x, y), color, best, intervals)
            lines.setdefault(model, []).append(line)
    labels = ("negatives per row", "Test recall@50, %")
    return [
        Plot("table2", model_title(model), *labels, drawn, log_x=True)
        for model, drawn in lines.items()
    ]


def _row_numbers(entry: Entry) -> dict[str, Any]:
    return {
        "model": entry.model,
        "strategy": entry.strategy,
        "capacity": entry.capacity,
        "negatives": entry.capacity + entry.batch_size,
        "seeds": [run.seed for run in entry.runs if run.finished],
        "runs": [f"runs/{run.name}" for run in entry.runs],
        "metrics": {
            key: value.as_dict() for key in METRICS if (value := entry.metric(key)) is not None
        },
    }
