"""Table 1: every model with every strategy, cost and quality, gains over in-batch sampling.

write_table1(GridFolder(Path("paper")))      # table1.md, .csv, .json, figures/gains.*
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from crossbatch.reports import formatting
from crossbatch.reports.comparison import MARKS_NOTE, TABLE_NOTE, Comparison, Estimate, Row, compare
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reports.plots import colors_of, gain_chart
from crossbatch.reports.svg import write_panels
from crossbatch.reproduce import published
from crossbatch.reproduce.folder import GridFolder, Place, place_of
from crossbatch.reproduce.groups import gain_numbers
from crossbatch.reproduce.sheet import Sheet, run_links, write_sheet

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.reports.comparison import Gain

METRICS = (
    "recall@20", "ndcg_comirec@20", "recall@50", "ndcg_comirec@50", "ndcg@20", "ndcg@50",
)  # fmt: skip
GAIN_METRICS = ("recall@50", "ndcg_comirec@50", "ndcg@50")
BESIDE = ("recall@20", "ndcg_comirec@20", "recall@50", "ndcg_comirec@50")
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
    if folder.about.get("paper"):
        parts += ["## Beside the paper", _beside(comparison), PAPER_NOTE]
    rows = [_record(row, folder) for row in comparison.rows]
    drawn = _draw_gains(comparison, folder)
    if drawn:
        parts.append("![Gains over in-batch sampling](figures/gain.svg)")
    return write_sheet(folder, Sheet("table1", "Table 1", parts, rows)) + drawn


def _draw_gains(comparison: Comparison, folder: GridFolder) -> list[Path]:
    """Bars of the gains with their intervals, one panel a model."""
    variants = [row.variant for row in comparison.rows if row.variant]
    colors, metric = colors_of(variants), comparison.headline
    charts = []
    for model in dict.fromkeys(variant.model_name for variant in variants):
        rows = [row for row in comparison.rows if row.model == model]
        title = f"{model}: gain in {metric_name(metric)} over in-batch, %"
        charts.append(gain_chart(title, metric, rows, colors))
    drawn = [chart for chart in charts if chart.bars]
    if not drawn:
        return []
    path = folder.path / "figures" / "gain.svg"
    written = [write_panels(drawn, path, columns=3)]
    if find_spec("matplotlib"):
        from crossbatch.reports.figures import draw_gains

        written += draw_gains(comparison, colors, path.parent)
    return written


def _ours(comparison: Comparison, folder: GridFolder) -> str:
    heads = ["Model", "Negatives", "Avg. time, s / 1000 steps", "CPU, s / 1000 steps"]
    heads += ["Conv. time, min", *(metric_name(key) for key in METRICS), "Runs by seed"]
    best = _best(comparison)
    lines = [
        [
            *_names(row),
            formatting.amount(row.seconds_per_1000_steps),
            formatting.amount(row.cpu_seconds_per_1000_steps),
            formatting.amount(row.convergence_minutes),
            *(
                _bold(formatting.percent(row.metrics.get(key)), (row.label, key) in best)
                for key in METRICS
            ),
            run_links(row.runs, folder) or "[measured](baselines.json)",
        ]
        for row in comparison.rows
    ]
    return pipe_table(heads, lines, words=2)


def _gain_table(comparison: Comparison) -> str:
    heads = ["Model", "Negatives", *(metric_name(key) for key in GAIN_METRICS)]
    lines = [
        [*_names(row), *(literal(_gain(row.gains.get(key))) for key in GAIN_METRICS)]
        for row in comparison.rows
        if row.gains
    ]
    return pipe_table(heads, lines, words=2)


def _names(row: Row) -> list[str]:
    return [literal(row.model), literal(row.sampler) or formatting.NOTHING]


def _beside(comparison: Comparison) -> str:
    heads = ["Model", "Negatives", "Avg. time, s / 1000 steps", "Conv. time, min"]
    heads += [metric_name(key) for key in BESIDE]
    heads += [f"Gain, {metric_name(key)}" for key in GAIN_METRICS[:2]]
    lines = []
    for row in comparison.rows:
        if row.variant is None:
            continue
        place = _place(row)
        theirs = published.TABLE1.get((place.model, place.strategy))
        if theirs is None:
            continue
        pairs = [
            (formatting.amount(row.seconds_per_1000_steps), f"{theirs.seconds_per_1000_steps:.1f}"),
            (formatting.amount(row.convergence_minutes), f"{theirs.convergence_minutes:.1f}"),
            *(
                (formatting.percent(row.metrics.get(key)), f"{theirs.metric(key):.2f}")
                for key in BESIDE
            ),
            *(_gains(row, place, key) for key in GAIN_METRICS[:2]),
        ]
        texts = [f"{literal(ours)} / {paper}" for ours, paper in pairs]
        lines.append([*_names(row), *texts])
    return pipe_table(heads, lines, words=2)


def _gains(row: Row, place: Place, key: str) -> tuple[str, str]:
    paper = published.gain(place.model, place.strategy, key)
    theirs = formatting.NOTHING if paper is None else f"{formatting.signed(paper)} %"
    return _gain(row.gains.get(key)), theirs


def _record(row: Row, folder: GridFolder) -> dict[str, Any]:
    """A row as numbers."""
    if row.variant is None:
        metrics = {key: _numbers(row.metrics.get(key)) for key in METRICS}
        return {"model": row.model, "runs": ["baselines.json"], "metrics": metrics}
    place = _place(row)
    theirs = published.TABLE1.get((place.model, place.strategy))
    record = {
        "model": place.model,
        "strategy": place.strategy,
        "seeds": [run.seed for run in row.runs if run.finished],
        "runs": [f"{run.path.parent.name}/{run.path.name}" for run in row.runs],
        "seconds_per_1000_steps": _numbers(row.seconds_per_1000_steps),
        "cpu_seconds_per_1000_steps": _numbers(row.cpu_seconds_per_1000_steps),
        "convergence_minutes": _numbers(row.convergence_minutes),
        "metrics": {key: _numbers(row.metrics.get(key)) for key in METRICS},
        "gains": {key: gain_numbers(row.gains.get(key)) for key in GAIN_METRICS},
    }
    if folder.about.get("paper") and theirs is not None:
        record["paper"] = {key: theirs.metric(key) for key in BESIDE}
    return record


def _place(row: Row) -> Place:
    return place_of(row.runs[0])


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


def _bold(text: str, bold: bool) -> str:
    return f"**{literal(text)}**" if bold else literal(text)


def _gain(value: Gain | None) -> str:
    marks = {"better": "▲ ", "worse": "▼ "}
    return marks.get(formatting.verdict(value), "") + formatting.gain(value)


def _numbers(value: Estimate | None) -> dict[str, float | None] | None:
    return None if value is None else {"mean": value.mean, "sd": value.spread}
