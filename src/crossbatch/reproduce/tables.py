"""The paper's two tables, from the runs of a grid, beside the paper's own numbers.

    folder = GridFolder(Path("paper"))
    write_table1(folder)        # table1.md, .csv, .json, figures/gain.*
    write_table2(folder)        # table2.md, .csv, .json, figures/table2.*

Table 1: every model with every strategy, cost and quality, gains over in-batch sampling. Table 2:
what the size of the bank does, for each model; a bank of size 0 is in-batch sampling, to the bit,
so those runs are Table 1's.

The paper is J. Wang, J. Zhu, X. He: Cross-Batch Negative Sampling for Training Two-Tower
Recommenders, SIGIR 2021; its numbers are for Amazon-Books.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from crossbatch.errors import DataError
from crossbatch.reports import formatting
from crossbatch.reports.comparison import (
    MARKS_NOTE,
    TABLE_NOTE,
    Comparison,
    Estimate,
    Gain,
    Row,
    compare,
    estimate,
)
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.journal import Curve
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reports.plots import Line, Plot, colors_of, gain_charts
from crossbatch.reports.variants import MODEL_NAMES, model_title, position
from crossbatch.reproduce.design import strategy_color, strategy_title
from crossbatch.reproduce.folder import Figure, GridFolder, run_links, run_name, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.reports.runs import Run

PAPER_METRICS = ("recall@20", "ndcg_comirec@20", "recall@50", "ndcg_comirec@50")
PAPER_COLUMNS = ("seconds_per_1000_steps", "convergence_minutes", *PAPER_METRICS)
_PAPER_ROWS = {
    ("youtube_dnn", "uniform"): (26.57, 135.97, 4.205, 7.174, 7.028, 11.741),
    ("youtube_dnn", "in_batch"): (16.27, 62.91, 4.070, 6.962, 6.908, 11.509),
    ("youtube_dnn", "mixed"): (24.73, 138.50, 4.113, 7.050, 6.929, 11.535),
    ("youtube_dnn", "cross_batch"): (20.38, 62.50, 4.237, 7.325, 7.084, 11.881),
    ("gru4rec", "uniform"): (96.08, 326.68, 4.237, 7.360, 6.895, 11.554),
    ("gru4rec", "in_batch"): (35.09, 91.81, 3.912, 6.674, 6.425, 10.724),
    ("gru4rec", "mixed"): (58.69, 464.62, 4.110, 7.178, 6.553, 11.183),
    ("gru4rec", "cross_batch"): (40.15, 167.31, 4.257, 7.479, 7.044, 12.032),
    ("mind", "uniform"): (37.51, 180.66, 4.137, 6.881, 7.008, 11.400),
    ("mind", "in_batch"): (27.87, 104.50, 4.140, 7.009, 6.894, 11.363),
    ("mind", "mixed"): (36.82, 205.57, 4.576, 7.596, 7.135, 11.603),
    ("mind", "cross_batch"): (31.65, 146.14, 4.799, 8.105, 7.689, 12.671),
}
# Times and metrics by model and strategy.
PAPER_TABLE1 = {key: dict(zip(PAPER_COLUMNS, row, strict=True)) for key, row in _PAPER_ROWS.items()}

# Recall@50 and NDCG@50 by bank size M and model.
PAPER_TABLE2: dict[int, dict[str, tuple[float, float]]] = {
    0: {"youtube_dnn": (6.908, 11.509), "gru4rec": (6.425, 10.724), "mind": (6.894, 11.363)},
    128: {"youtube_dnn": (7.032, 11.877), "gru4rec": (6.518, 10.993), "mind": (7.003, 11.431)},
    512: {"youtube_dnn": (7.175, 12.085), "gru4rec": (6.679, 11.229), "mind": (7.102, 11.66)},
    1152: {"youtube_dnn": (7.182, 12.055), "gru4rec": (6.845, 11.681), "mind": (7.463, 12.309)},
    2432: {"youtube_dnn": (7.084, 11.881), "gru4rec": (7.044, 12.032), "mind": (7.689, 12.671)},
    4992: {"youtube_dnn": (6.988, 11.807), "gru4rec": (7.394, 12.423), "mind": (7.474, 12.303)},
    10112: {"youtube_dnn": (7.001, 11.772), "gru4rec": (6.903, 11.810), "mind": (7.268, 11.939)},
}


METRICS = (
    "recall@20", "ndcg_comirec@20", "recall@50", "ndcg_comirec@50", "ndcg@20", "ndcg@50",
)  # fmt: skip
COSTS = ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes")
GAIN_METRICS = ("recall@50", "ndcg_comirec@50", "ndcg@50")
TIME_NOTE = (
    "Times are wall time, as in the paper, and depend on what else the machine did; CPU is the "
    "processor time of the training steps, on one thread."
)
PAPER_NOTE = (
    "Ours / the paper's. The paper trained on all of Amazon-Books; its levels are comparable only "
    "to runs on that data, its gains over in-batch to any."
)


def write_table1(folder: GridFolder) -> list[Path]:
    """Write the table from all runs that the folder holds."""
    runs = folder.table_runs()
    if folder.baselines:  # a comparison takes the baselines of any of its runs
        runs[0] = replace(runs[0], result={**runs[0].result, "baselines": folder.baselines})
    comparison = compare(runs)
    parts = [_ours(comparison, folder), f"{TABLE_NOTE} {TIME_NOTE}"]
    parts += ["## Gains over in-batch sampling", _gain_table(comparison), MARKS_NOTE]
    if folder.facts.get("paper"):
        parts += ["## Beside the paper", _beside(comparison), PAPER_NOTE]
    rows = [_row_numbers(row, folder) for row in comparison.rows]
    charts = gain_charts(comparison, colors_of([r.variant for r in comparison.rows if r.variant]))
    figure = Figure("gain", charts, 3, "Gains over in-batch sampling", captioned=False)
    return write_page(folder, "table1", "Table 1", parts, rows, figure)


def _ours(comparison: Comparison, folder: GridFolder) -> str:
    heads = ["Model", "Negatives", "Avg. time, s / 1000 steps", "CPU, s / 1000 steps"]
    heads += ["Conv. time, min", *map(metric_name, METRICS), "Runs by seed"]
    best: dict[tuple[str, str], float] = {}
    for row, key in product(comparison.rows, METRICS):
        if row.variant and key in row.metrics:
            best[row.model, key] = max(row.metrics[key].mean, best.get((row.model, key), 0.0))
    lines = []
    for row in comparison.rows:
        line = [*_names(row), *(formatting.amount(getattr(row, key)) for key in COSTS)]
        for key in METRICS:
            value = row.metrics.get(key)
            bold = "**" if value and value.mean == best.get((row.model, key)) else ""
            line.append(f"{bold}{literal(formatting.percent(value))}{bold}")
        lines.append([*line, run_links(row.runs, folder) or "[measured](baselines.json)"])
    return pipe_table(heads, lines, words=2)


def _gain_table(comparison: Comparison) -> str:
    heads = ["Model", "Negatives", *map(metric_name, GAIN_METRICS)]
    lines = [
        [*_names(row), *(literal(_marked_gain(row.gains.get(key))) for key in GAIN_METRICS)]
        for row in comparison.rows
        if row.gains
    ]
    return pipe_table(heads, lines, words=2)


def _beside(comparison: Comparison) -> str:
    """Our numbers and the paper's, where it has the model and the strategy."""
    metrics, gains = PAPER_METRICS, GAIN_METRICS[:2]
    heads = ["Model", "Negatives", "Avg. time, s / 1000 steps", "Conv. time, min"]
    heads += [*map(metric_name, metrics), *(f"Gain, {metric_name(key)}" for key in gains)]
    lines = []
    for row in comparison.rows:
        model, strategy = _key(row)
        paper = PAPER_TABLE1.get((model, strategy))
        if paper is None:
            continue
        line = _names(row)
        for key in COSTS[::2]:
            line.append(f"{formatting.amount(getattr(row, key))} / {paper[key]:.1f}")
        for key in metrics:
            line.append(f"{formatting.percent(row.metrics.get(key))} / {paper[key]:.2f}")
        for key in gains:
            theirs = formatting.NOTHING
            if strategy != "in_batch":
                base = PAPER_TABLE1[model, "in_batch"][key]
                theirs = f"{formatting.signed(paper[key] / base - 1)} %"
            line.append(f"{literal(_marked_gain(row.gains.get(key)))} / {theirs}")
        lines.append(line)
    return pipe_table(heads, lines, words=2)


def _row_numbers(row: Row, folder: GridFolder) -> dict[str, Any]:
    """A row as JSON and CSV keep it."""
    metrics = {key: _numbers(row.metrics.get(key)) for key in METRICS}
    model, strategy = _key(row)
    if not strategy:
        return {"model": model, "runs": ["baselines.json"], "metrics": metrics}
    numbers: dict[str, Any] = {
        "model": model,
        "strategy": strategy,
        "seeds": [run.seed for run in row.runs if run.finished],
        "runs": [f"runs/{run.name}" for run in row.runs],
        **{key: _numbers(getattr(row, key)) for key in COSTS},
        "metrics": metrics,
        "gains": {key: _numbers(row.gains.get(key)) for key in GAIN_METRICS},
    }
    paper = PAPER_TABLE1.get((model, strategy))
    if folder.facts.get("paper") and paper is not None:
        numbers["paper"] = {key: paper[key] for key in PAPER_METRICS}
    return numbers


def _numbers(value: Estimate | Gain | None) -> dict[str, float | None] | None:
    return value.as_dict() if value else None


def _key(row: Row) -> tuple[str, str]:
    """Model and strategy of a row's runs; a baseline's name and no strategy."""
    return run_name(row.runs[0])[:2] if row.runs else (row.model, "")


def _names(row: Row) -> list[str]:
    return [literal(row.model), literal(row.sampler) or formatting.NOTHING]


def _marked_gain(value: Gain | None) -> str:
    marks = {"better": "▲ ", "worse": "▼ "}
    return marks.get(formatting.verdict(value), "") + formatting.gain(value)


BANK_METRICS = ("recall@50", "ndcg_comirec@50", "ndcg@50")
BANKED = ("cross_batch", "balanced", "deferred")
BANK_NOTE = (
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
            parts += [f"## {strategy_title(strategy)}", *_bank_tables(mine, folder)]
    if not parts:
        raise DataError(f"{folder.path / 'runs'} holds no run with a bank; train some with --data")
    parts.append(BANK_NOTE)
    rows = [_entry_numbers(entry) for entry in entries]
    figure = Figure("table2", _bank_plots(entries), 3, "Test recall@50 by number of negatives.")
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


def _bank_tables(entries: Sequence[Entry], folder: GridFolder) -> list[str]:
    """The metrics of one strategy by bank size, and the runs behind them by seed."""
    models = list(dict.fromkeys(entry.model for entry in entries))
    found = {(entry.capacity, entry.model): entry for entry in entries}
    beside = bool(folder.facts.get("paper")) and entries[0].strategy == "cross_batch"
    heads = ["M", "#neg"]
    for name in map(model_title, models):
        heads += [f"{name}, {metric_name(key)}" for key in BANK_METRICS]
        heads += [f"{name}, paper's Recall / NDCG"] if beside else []
    best: dict[tuple[str, str], float] = {}
    for entry, key in product(entries, BANK_METRICS):
        if value := entry.metric(key):
            best[entry.model, key] = max(value.mean, best.get((entry.model, key), 0.0))
    lines, links = [], []
    for capacity, batch_size in sorted({(entry.capacity, entry.batch_size) for entry in entries}):
        line, linked = [str(capacity), str(capacity + batch_size)], [str(capacity)]
        for model in models:
            runs = found[capacity, model].runs if (capacity, model) in found else []
            for key in BANK_METRICS:
                value = estimate(run.metrics().get(key) for run in runs)
                bold = "**" if value and value.mean == best[model, key] else ""
                line.append(f"{bold}{formatting.percent(value)}{bold}")
            if beside:
                pair = PAPER_TABLE2.get(capacity, {}).get(model)
                line.append(f"{pair[0]:.2f} / {pair[1]:.2f}" if pair else formatting.NOTHING)
            linked.append(run_links(runs, folder) or formatting.NOTHING)
        lines.append(line)
        links.append(linked)
    run_heads = ["Runs by seed: M", *(literal(model_title(model)) for model in models)]
    return [
        pipe_table([literal(head) for head in heads], lines, words=0),
        pipe_table(run_heads, links, words=len(run_heads)),
    ]


def _bank_plots(entries: Sequence[Entry]) -> list[Plot]:
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


def _entry_numbers(entry: Entry) -> dict[str, Any]:
    return {
        "model": entry.model,
        "strategy": entry.strategy,
        "capacity": entry.capacity,
        "negatives": entry.capacity + entry.batch_size,
        "seeds": [run.seed for run in entry.runs if run.finished],
        "runs": [f"runs/{run.name}" for run in entry.runs],
        "metrics": {
            key: value.as_dict() for key in BANK_METRICS if (value := entry.metric(key)) is not None
        },
    }
