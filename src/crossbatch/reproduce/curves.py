"""Figures of values over training, with their pages: convergence, drift (Eq. 5), the lemma.

    folder = GridFolder(Path("paper"))
    write_curves(folder)        # curves.md, .csv, .json, figures/curves.*
    write_drift(folder)         # drift.*, from the probe runs
    write_lemma(folder)         # lemma.*, likewise

Convergence is validation recall by step and NDCG by wall time, as in the paper's figure.

D(t; Δt) sums the distance that every item's vector moved in the last Δt mini-batches. The sum, as
in the paper, grows with the catalogue; the mean does not, and the relative form (divided by the
vectors' lengths) also compares models.

For users i and banked items j with logit o = uᵀv, the deviation ‖∂ô/∂θ − ∂o/∂θ‖² comes from using
the cached v̂ instead of the fresh v; ε = ‖v̂ − v‖², and C = ‖∂u/∂θ‖² is the constant that the paper
reports to be at most 1. θ are the parameters that the user vector depends on, tables included.
"""

from __future__ import annotations

from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from crossbatch.errors import DataError
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.journal import Curve, number
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reports.plots import Line, Mark, Plot, colors_of
from crossbatch.reports.svg import COLORS
from crossbatch.reports.variants import MODEL_NAMES, Variant, group_runs, model_title, position
from crossbatch.reproduce.design import STRATEGIES, strategy_color, strategy_title
from crossbatch.reproduce.folder import Figure, GridFolder, run_link, run_name, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.reports.runs import Run

CURVES_NOTE = (
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
    return write_page(folder, "curves", "Curves", [CURVES_NOTE, f"Runs: {links}"], rows, figure)


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


INTERVALS = ("1", "5", "10")
DRIFT_FORMS = {"sum": "sum over items", "mean": "mean over items", "relative": "share of length"}
DRIFT_FIGURES = {"sum": "drift, sum over items", "relative": "drift, share of vector length"}
DRIFT_NOTE = (
    "Drift of all items' vectors over the last Δt mini-batches: at the first measurement, where "
    "the warm-up ends, and at the last measurement. Sum is the paper's form (Eq. 5)."
)
LEMMA_VALUES = {
    "epsilon": "ε",
    "deviation": "deviation",
    "bound": "bound C ε",
    "relative": "relative error",
}
LEMMA_NOTE = (
    "Means over 8 users and all rows of the bank, where the warm-up ends and at the last "
    "measurement; a fresh vector has no deviation. Relative error: squared deviation over squared "
    "gradient. C needed: the largest deviation / ε of any pair, over all of training; C of the "
    "tower: the largest ‖∂u/∂θ‖². The paper says C ≤ 1."
)
PAPER_CONSTANT = 1.0
LAST = float("inf")


class ProbeRun(NamedTuple):
    """A run that measured drift and the lemma."""

    run: Run
    model: str
    strategy: str

    @property
    def names(self) -> list[str]:
        """Model and strategy in print."""
        return [literal(model_title(self.model)), literal(strategy_title(self.strategy))]

    @property
    def warmup(self) -> float:
        """Steps before the bank was read; 0 without a bank."""
        return number(self.run.config.get("sampler", {}).get("warmup_steps")) or 0.0

    def curve(self, *path: str) -> Curve:
        """A measured value over training."""
        return self.run.journal.curve("probe", "step", *path)

    def value_at(self, step: float, digits: int, *path: str) -> str:
        """A measured value in print: the first at or after a step, else the last one."""
        curve = self.curve(*path)
        if not len(curve):
            return "–"
        later = (y for x, y in zip(curve.x, curve.y, strict=True) if x >= step)
        return f"{next(later, curve.y[-1]):.{digits}g}"

    def measurements(self, measured: str) -> list[dict[str, Any]]:
        """Every measurement of a kind, as JSON keeps it."""
        about = {"model": self.model, "strategy": self.strategy, "run": f"probes/{self.run.name}"}
        events = self.run.journal.of("probe")
        return [about | {k: e[k] for k in ("step", measured)} for e in events if measured in e]


def write_drift(folder: GridFolder) -> list[Path]:
    """Write the drift page from the probe runs of the folder."""
    probes = [probe for probe in read_probes(folder) if len(probe.curve("drift", "10", "sum"))]
    if not probes:
        raise DataError(f"{folder.path / 'probes'} holds no drift; train its runs with --data")
    heads = ["Model", "Negatives", "Δt"]
    heads += [f"{form}, {w}" for form in DRIFT_FORMS.values() for w in ("first", "warm-up", "last")]
    lines = []
    for probe, interval in product(probes, INTERVALS):
        marks = warmup_marks(probes, probe.model)
        steps = (0.0, marks[0].x if marks else 0.0, LAST)
        line = [*probe.names, interval]
        for form, step in product(DRIFT_FORMS, steps):
            line.append(probe.value_at(step, 4, "drift", interval, form))
        lines.append([*line, run_link(probe.run, folder, probe.run.name)])
    caption = "Feature drift while training with in-batch negatives, by Δt mini-batches."
    parts = [pipe_table([*heads, "Run"], lines, words=2), DRIFT_NOTE]
    figure = Figure("drift", drift_plots(probes), len(_models(probes)), caption)
    rows = [row for probe in probes for row in probe.measurements("drift")]
    return write_page(folder, "drift", "Feature drift", parts, rows, figure)


def drift_plots(probes: Sequence[ProbeRun]) -> list[Plot]:
    """Drift by step for the in-batch run of each model: the paper's sum, and the relative form."""
    plots = []
    for (form, y_label), model in product(DRIFT_FIGURES.items(), _models(probes)):
        mine = [probe for probe in probes if probe.model == model]
        probe = next((each for each in mine if each.strategy == "in_batch"), mine[0])
        lines = [
            Line(f"Δt = {interval}", "", probe.curve("drift", interval, form), color)
            for color, interval in enumerate(INTERVALS)
        ]
        marks, title = warmup_marks(probes, model), model_title(model)
        plots.append(Plot(f"drift-{form}", title, "step", y_label, lines, marks=marks))
    return plots


def write_lemma(folder: GridFolder) -> list[Path]:
    """Write the lemma page from the probe runs of the folder that have a bank."""
    probes = [probe for probe in read_probes(folder) if len(probe.curve("lemma", "bound"))]
    if not probes:
        raise DataError(f"{folder.path / 'probes'} holds no banked run; train some with --data")
    heads = ["Model", "Negatives"]
    heads += [f"{name}, {when}" for name in LEMMA_VALUES.values() for when in ("warm-up", "last")]
    lines = []
    for probe in probes:
        line = probe.names
        for key, step in product(LEMMA_VALUES, (probe.warmup, LAST)):
            line.append(probe.value_at(step, 3, "lemma", key))
        line += [f"{max(probe.curve('lemma', key).y):.3g}" for key in ("constant", "jacobian")]
        lines.append([*line, run_link(probe.run, folder, probe.run.name)])
    heads += ["C needed", "C of the tower", "Run"]
    parts = [pipe_table(heads, lines, words=2), LEMMA_NOTE]
    caption = "Gradient deviation by cached vectors against its bound, and the constant C."
    figure = Figure("lemma", _lemma_plots(probes), len(_models(probes)), caption)
    rows = [row for probe in probes for row in probe.measurements("lemma")]
    return write_page(folder, "lemma", "The lemma", parts, rows, figure)


def _lemma_plots(probes: Sequence[ProbeRun]) -> list[Plot]:
    """Deviation and bound of each model, then the constant of each."""
    deviations: list[Plot] = []
    constants: list[Plot] = []
    for model in _models(probes):
        lines, largest = [], []
        for probe in (each for each in probes if each.model == model):
            title, color = strategy_title(probe.strategy), strategy_color(probe.strategy)
            deviation, bound, constant = (
                _positive(probe.curve("lemma", key)) for key in ("deviation", "bound", "jacobian")
            )
            lines.append(Line(title, "", deviation, color))
            lines.append(Line(f"{title}: bound C ε", "", bound, color + COLORS))
            largest.append(Line(title, "", constant, color))
        if steps := [step for line in largest for step in line.curve.x]:
            flat = Curve((min(steps), max(steps)), (PAPER_CONSTANT, PAPER_CONSTANT))
            largest.append(Line("C = 1, the paper", "", flat, COLORS - 1))
        panels = (
            (deviations, "lemma-deviation", "squared gradient deviation", lines),
            (constants, "lemma-constant", "C, largest of 8 users", largest),
        )
        title, marks = model_title(model), warmup_marks(probes, model)
        for plots, name, y_label, drawn in panels:
            plots.append(Plot(name, title, "step", y_label, drawn, marks=marks, log_y=True))
    return [*deviations, *constants]


def read_probes(folder: GridFolder) -> list[ProbeRun]:
    """The probe runs of a grid, models in the order of the tables."""
    probes = [ProbeRun(run, *run_name(run)[:2]) for run in folder.runs("probes")]
    return sorted(
        probes, key=lambda p: (position(p.model, MODEL_NAMES), position(p.strategy, STRATEGIES))
    )


def warmup_marks(probes: Sequence[ProbeRun], model: str) -> list[Mark]:
    """The end of the warm-up that the banked runs of a model chose."""
    steps = dict.fromkeys(probe.warmup for probe in probes if probe.model == model and probe.warmup)
    return [Mark(step, "warm-up ends") for step in steps]


def _models(probes: Sequence[ProbeRun]) -> list[str]:
    return list(dict.fromkeys(probe.model for probe in probes))


def _positive(curve: Curve) -> Curve:
    """The points that a logarithmic axis can show."""
    points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y > 0]
    return Curve(tuple(x for x, _ in points), tuple(y for _, y in points))
