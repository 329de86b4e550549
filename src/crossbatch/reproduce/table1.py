"""Table 1: every model with every strategy, cost and quality, gains over in-batch sampling.

write_table1(GridFolder(Path("paper")))      # table1.md, .csv, .json, figures/gain.*
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from crossbatch.reports import formatting
from crossbatch.reports.comparison import MARKS_NOTE, TABLE_NOTE, Comparison, Row, compare
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reports.plots import colors_of, gain_charts
from crossbatch.reproduce import paper_numbers
from crossbatch.reproduce.folder import GridFolder, run_name
from crossbatch.reproduce.page import Figure, run_links, write_page

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.reports.comparison import Estimate, Gain

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
    metrics, gains = paper_numbers.METRICS, GAIN_METRICS[:2]
    heads = ["Model", "Negatives", "Avg. time, s / 1000 steps", "Conv. time, min"]
    heads += [*map(metric_name, metrics), *(f"Gain, {metric_name(key)}" for key in gains)]
    lines = []
    for row in comparison.rows:
        model, strategy = _key(row)
        paper = paper_numbers.TABLE1.get((model, strategy))
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
                base = paper_numbers.TABLE1[model, "in_batch"][key]
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
    paper = paper_numbers.TABLE1.get((model, strategy))
    if folder.facts.get("paper") and paper is not None:
        numbers["paper"] = {key: paper[key] for key in paper_numbers.METRICS}
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
