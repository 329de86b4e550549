"""Table 1: every model with every strategy, cost and quality, gains over in-batch sampling.

write_table1(GridFolder(Path("paper")))      # table1.md, .csv, .json, figures/gain.*
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crossbatch.reports import formatting
from crossbatch.reports.comparison import MARKS_NOTE, TABLE_NOTE, Comparison, Row, compare
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reports.plots import colors_of, gain_charts
from crossbatch.reproduce import paper_numbers
from crossbatch.reproduce.folder import GridFolder, RunName, run_name
from crossbatch.reproduce.page import Figure, Page, run_links, write_page

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.reports.comparison import Gain

METRICS = (
    "recall@20", "ndcg_comirec@20", "recall@50", "ndcg_comirec@50", "ndcg@20", "ndcg@50",
)  # fmt: skip
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
    return write_page(folder, Page("table1", "Table 1", parts, rows, [figure]))


def _ours(comparison: Comparison, folder: GridFolder) -> str:
    heads = ["Model", "Negatives", "Avg. time, s / 1000 steps", "CPU, s / 1000 steps"]
    heads += ["Conv. time, min", *(metric_name(key) for key in METRICS), "Runs by seed"]
    best, lines = _best(comparison), []
    for row in comparison.rows:
        costs = (row.seconds_per_1000_steps, row.cpu_seconds_per_1000_steps)
        line = [*_names(row), *map(formatting.amount, (*costs, row.convergence_minutes))]
        for key in METRICS:
            bold = "**" if (row.label, key) in best else ""
            line.append(f"{bold}{literal(formatting.percent(row.metrics.get(key)))}{bold}")
        lines.append([*line, run_links(row.runs, folder) or "[measured](baselines.json)"])
    return pipe_table(heads, lines, words=2)


def _gain_table(comparison: Comparison) -> str:
    heads = ["Model", "Negatives", *(metric_name(key) for key in GAIN_METRICS)]
    lines = [
        [*_names(row), *(literal(_marked_gain(row.gains.get(key))) for key in GAIN_METRICS)]
        for row in comparison.rows
        if row.gains
    ]
    return pipe_table(heads, lines, words=2)


def _names(row: Row) -> list[str]:
    return [literal(row.model), literal(row.sampler) or formatting.NOTHING]


def _beside(comparison: Comparison) -> str:
    """Our numbers and the paper's, where it has the model and the strategy."""
    metrics, gains = paper_numbers.METRICS, GAIN_METRICS[:2]
    heads = ["Model", "Negatives", "Avg. time, s / 1000 steps", "Conv. time, min"]
    heads += [metric_name(key) for key in metrics]
    heads += [f"Gain, {metric_name(key)}" for key in gains]
    lines = []
    for row in comparison.rows:
        name = _name(row)
        paper = paper_numbers.TABLE1.get((name.model, name.strategy)) if name else None
        if name is None or paper is None:
            continue
        seconds, minutes = paper[paper_numbers.SECONDS], paper[paper_numbers.MINUTES]
        pairs = [
            (formatting.amount(row.seconds_per_1000_steps), f"{seconds:.1f}"),
            (formatting.amount(row.convergence_minutes), f"{minutes:.1f}"),
            *((formatting.percent(row.metrics.get(key)), f"{paper[key]:.2f}") for key in metrics),
        ]
        for key in gains:
            theirs = paper_numbers.paper_gain(name.model, name.strategy, key)
            text = formatting.NOTHING if theirs is None else f"{formatting.signed(theirs)} %"
            pairs.append((_marked_gain(row.gains.get(key)), text))
        lines.append([*_names(row), *(f"{literal(ours)} / {theirs}" for ours, theirs in pairs)])
    return pipe_table(heads, lines, words=2)


def _row_numbers(row: Row, folder: GridFolder) -> dict[str, Any]:
    """A row as JSON and CSV keep it."""
    metrics = {key: value.as_dict() if (value := row.metrics.get(key)) else None for key in METRICS}
    name = _name(row)
    if name is None:
        return {"model": row.model, "runs": ["baselines.json"], "metrics": metrics}
    costs = ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes")
    numbers: dict[str, Any] = {
        "model": name.model,
        "strategy": name.strategy,
        "seeds": [run.seed for run in row.runs if run.finished],
        "runs": [f"{run.path.parent.name}/{run.path.name}" for run in row.runs],
        **{key: cost.as_dict() if (cost := getattr(row, key)) else None for key in costs},
        "metrics": metrics,
        "gains": {
            key: gain.as_dict() if (gain := row.gains.get(key)) else None for key in GAIN_METRICS
        },
    }
    paper = paper_numbers.TABLE1.get((name.model, name.strategy))
    if folder.facts.get("paper") and paper is not None:
        numbers["paper"] = {key: paper[key] for key in paper_numbers.METRICS}
    return numbers


def _name(row: Row) -> RunName | None:
    """Model and strategy of a row's runs; None for a baseline."""
    return run_name(row.runs[0]) if row.runs else None


def _best(comparison: Comparison) -> set[tuple[str, str]]:
    """Label of the best row of each model in each metric."""
    best: dict[tuple[str, str], Row] = {}
    for row in comparison.rows:
        for key in METRICS if row.variant else ():
            if key in row.metrics:
                rival = best.setdefault((row.model, key), row)
                if row.metrics[key].mean > rival.metrics[key].mean:
                    best[row.model, key] = row
    return {(row.label, key) for (_, key), row in best.items()}


def _marked_gain(value: Gain | None) -> str:
    marks = {"better": "▲ ", "worse": "▼ "}
    return marks.get(formatting.verdict(value), "") + formatting.gain(value)
