"""Validation recall by step and NDCG by wall time (the paper's figure on convergence).

write_curves(GridFolder(Path("paper")))      # curves.md, .csv, .json, figures/curves.*
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from crossbatch.reports.formatting import metric_name
from crossbatch.reports.journal import Curve
from crossbatch.reports.plots import Line, Plot, colors_of
from crossbatch.reports.variants import Variant, group_runs
from crossbatch.reproduce.folder import GridFolder, run_name
from crossbatch.reproduce.page import Figure, run_link, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.reports.runs import Run

NOTE = (
    "Means over seeds up to the first seed's early stop; a dot marks the best mean. Wall time "
    "includes the evaluations. The file beside this page has every evaluation of every run."
)
METRICS = ("recall@50", "ndcg@50")
PANELS = (("recall", "recall@50", "step", "step"), ("ndcg", "ndcg@50", "seconds", "minutes"))


def write_curves(folder: GridFolder) -> list[Path]:
    """Write the page from all runs of Table 1 that the folder holds."""
    runs = folder.table_runs()
    plots = curve_plots(runs)
    models = len(dict.fromkeys(run.model for run in runs))
    figure = Figure("curves", plots, models, "Validation recall by step, NDCG by wall time.")
    links = " · ".join(run_link(run, folder, run.name) for run in runs)
    rows = [row for run in runs for row in _records(run)]
    return write_page(folder, "curves", "Curves", [NOTE, f"Runs: {links}"], rows, figure)


def curve_plots(runs: Sequence[Run]) -> list[Plot]:
    """Recall by step for each model, then NDCG by minute for each; a line is a mean over seeds."""
    variants = group_runs(runs)
    colors = colors_of(variants)
    plots = []
    for name, metric, x, x_label in PANELS:
        for model in dict.fromkeys(variant.model_name for variant in variants):
            lines = [
                _mean_line(variant, metric, x, colors[variant.sampler_name])
                for variant in variants
                if variant.model_name == model
            ]
            drawn = [line for line in lines if len(line.curve)]
            if drawn:
                plots.append(Plot(name, model, x_label, f"{metric_name(metric)}, %", drawn))
    return plots


def _mean_line(variant: Variant, metric: str, x: str, color: int) -> Line:
    """The mean over seeds at each evaluation that all of them reached."""
    tables = [
        {event["step"]: event for event in run.journal.of("eval") if metric in event["metrics"]}
        for run in variant.runs
    ]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    ys = [100 * fmean(table[step]["metrics"][metric] for table in tables) for step in shared]
    scale = 60 if x == "seconds" else 1
    xs = [fmean(table[step][x] for table in tables) / scale for step in shared]
    best = ys.index(max(ys)) if ys else None
    return Line(variant.sampler_name, "", Curve(tuple(xs), tuple(ys)), color, best)


def _records(run: Run) -> list[dict[str, Any]]:
    """Every evaluation of a run."""
    name = run_name(run)
    return [
        {
            "model": name.model,
            "strategy": name.strategy,
            "seed": name.seed,
            "step": event["step"],
            "minutes": event["seconds"] / 60,
            "metrics": {key: event["metrics"].get(key) for key in METRICS},
        }
        for event in run.journal.of("eval")
    ]
