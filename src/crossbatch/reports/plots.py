"""What a report draws, as plain numbers: SVG and matplotlib show the same lines and bars.

    for plot in training_plots(group_runs(runs), headline="recall@50"):
        svg.line_chart(plot)

With more than one model or data set every plot is split, or twelve lines would lie on each other.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossbatch.reports import formatting
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.journal import Curve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crossbatch.reports.comparison import Comparison, Row
    from crossbatch.reports.runs import Run
    from crossbatch.reports.variants import Variant

MAX_POINTS = 120  # more than a plot of this size can show

# Title, unit and what the reader should know, in the order of the page.
DIAGNOSTICS = {
    "negatives_per_row": ("Negatives per row", "columns each user is scored against"),
    "masked_share": ("Masked share", "columns left out because they are the row's own positive"),
    "effective_negatives": ("Effective negatives", "exp(entropy) of the negatives' softmax"),
    "hardness": ("Hardness", "largest negative logit minus the positive's"),
    "bank_fill": ("Bank fill", "share of the bank that is written"),
    "bank_mean_age": ("Bank mean age", "steps since its rows were encoded"),
    "bank_staleness": ("Bank staleness", "‖cached − fresh‖ / ‖fresh‖"),
    "bank_mass_share": ("Bank share of the softmax", "probability mass on cached columns"),
    "item_norm": ("Item norm", "mean length of item vectors"),
    "mean_direction_share": ("Mean-direction share", "towards 1 all items point the same way"),
    "mean_direction_growth": ("Mean-direction growth", "the same, over what it was without bank"),
    "gradient_ratio": ("Gradient ratio", "item-side / user-side gradient norm"),
}
TRAIN_VALUES = {
    "steps_per_second": ("Steps per second", "training speed"),
    "lr": ("Learning rate", "as the optimiser used it"),
}
LOSS_NOTE = "Samplers with more negatives have a larger loss: compare shapes, not heights."
GAIN_REACH = (-1.0, 1.0)  # per cent: less is noise and must look small


@dataclass(frozen=True, slots=True)
class Line:
    """One line; lines of one configuration share label and color, their notes differ."""

    label: str
    note: str
    curve: Curve
    color: int
    best: int | None = None  # index of the point to mark
    intervals: Sequence[tuple[float, float]] = ()  # a whisker per point, or none


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at a place worth knowing."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """One chart: what is on the axes, and its lines. Logarithmic axes need positive numbers."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    note: str = ""
    marks: Sequence[Mark] = ()
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One horizontal bar; the whisker spans `interval`."""

    label: str
    value: float
    text: str
    color: int | None = None  # None is the neutral colour of baselines
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars from top to bottom; `reach` are values that must fit on the axis."""

    title: str
    bars: Sequence[Bar]
    note: str = ""
    reach: Sequence[float] = ()


def colors_of(variants: Sequence[Variant]) -> dict[str, int]:
    """One colour number per sampler name, the same in every plot of the report."""
    names = dict.fromkeys(variant.sampler_name for variant in variants)
    return {name: index for index, name in enumerate(names)}


def training_plots(variants: Sequence[Variant], headline: str) -> list[Plot]:
    """Validation recall by step, NDCG by minute, and training loss by step; empty ones left out.

    `headline` is the recall to show; its cut-off also picks the NDCG.
    """
    ndcg = headline.replace("recall", "ndcg")
    colors = colors_of(variants)
    plots = []
    for place, group in _by_place(variants).items():
        suffix = f" · {place}" if place else ""
        validation = (("recall", headline, "step", "step"), ("ndcg", ndcg, "seconds", "minutes"))
        for name, metric, x, x_label in validation:
            title = f"Validation {metric_name(metric)}{suffix}"
            lines = _lines(group, colors, "eval", x, ("metrics", metric))
            plots.append(Plot(name, title, x_label, f"{metric_name(metric)}, %", lines))
        lines = _lines(group, colors, "train", "step", ("loss",))
        plots.append(Plot("loss", f"Training loss{suffix}", "step", "loss", lines, LOSS_NOTE))
    order = ["recall", "ndcg", "loss"]
    return sorted((plot for plot in plots if plot.lines), key=lambda plot: order.index(plot.name))


def diagnostic_plots(run: Run, color: int = 0) -> list[Plot]:
    """Small charts of everything one run wrote about its health."""
    found = set(run.journal.keys("train", "diagnostics"))
    known = {key: text for key, text in DIAGNOSTICS.items() if key in found}
    others = {key: (key.replace("_", " "), "") for key in sorted(found - known.keys())}
    paths = {key: ("diagnostics", key) for key in (*known, *others)} | {
        key: (key,) for key in TRAIN_VALUES
    }
    texts = known | others | TRAIN_VALUES
    plots = []
    for key, path in paths.items():
        curve = thin(run.journal.curve("train", "step", *path), MAX_POINTS // 2)
        if len(curve):
            title, note = texts[key]
            line = Line(run.name, "", curve, color)
            plots.append(Plot(key, title, "step", title, [line], note))
    return plots


def result_bars(comparison: Comparison, colors: Mapping[str, int]) -> list[BarChart]:
    """Bars of the headline metric, and of its gain over in-batch, per data set and model."""
    metric, several = comparison.headline, len(comparison.datasets) > 1
    charts = []
    for dataset in comparison.datasets:
        rows = [row for row in comparison.rows if row.dataset == dataset and metric in row.metrics]
        baselines = [row for row in rows if row.variant is None]
        for model in dict.fromkeys(row.model for row in rows if row.variant):
            own = [row for row in rows if row.variant and row.model == model]
            place = " · ".join(filter(None, [model, dataset if several else ""]))
            charts.append(
                BarChart(
                    f"Test {metric_name(metric)}, % · {place}",
                    [_metric_bar(metric, row, colors) for row in [*baselines, *own]],
                    "Whiskers: ± one standard deviation over seeds; of a single seed, 95 % over "
                    "users.",
                )
            )
            title = f"Gain over in-batch, {metric_name(metric)} · {place}"
            charts.append(_gain_chart(title, metric, own, colors))
    return [chart for chart in charts if chart.bars]


def gain_charts(comparison: Comparison, colors: Mapping[str, int]) -> list[BarChart]:
    """Bars of the gains over in-batch in the headline metric, a chart a model."""
    metric, charts = comparison.headline, []
    for model in dict.fromkeys(row.model for row in comparison.rows):
        rows = [row for row in comparison.rows if row.model == model]
        title = f"{model}: gain in {metric_name(metric)} over in-batch, %"
        charts.append(_gain_chart(title, metric, rows, colors))
    return [chart for chart in charts if chart.bars]


def _gain_chart(
    title: str, metric: str, rows: Sequence[Row], colors: Mapping[str, int]
) -> BarChart:
    """A bar for each row that has a gain in the metric, in per cent."""
    bars = [
        Bar(
            row.sampler,
            100 * gain.relative,
            f"{formatting.signed(gain.relative)} %",
            colors.get(row.sampler),
            (100 * gain.interval[0], 100 * gain.interval[1]) if gain.interval else None,
        )
        for row in rows
        if (gain := row.gains.get(metric))
    ]
    note = "Whiskers: 95 % paired bootstrap over users and seeds."
    return BarChart(title, bars, note, reach=GAIN_REACH)


def _metric_bar(metric: str, row: Row, colors: Mapping[str, int]) -> Bar:
    value = row.metrics[metric]
    interval = None
    if value.spread is not None:
        interval = (100 * (value.mean - value.spread), 100 * (value.mean + value.spread))
    elif len(row.runs) == 1 and (users := row.runs[0].interval(metric)):
        interval = (100 * users[0], 100 * users[1])
    label = row.sampler or row.model
    return Bar(label, 100 * value.mean, formatting.percent(value), colors.get(label), interval)


def thin(curve: Curve, points: int = MAX_POINTS) -> Curve:
    """At most `points` points: the means of equal stretches, which also smooths noise."""
    if len(curve) <= points:
        return curve
    edges = [len(curve) * i // points for i in range(points + 1)]
    spans = list(itertools.pairwise(edges))
    x = tuple(sum(curve.x[a:b]) / (b - a) for a, b in spans)
    y = tuple(sum(curve.y[a:b]) / (b - a) for a, b in spans)
    return Curve(x, y)


def _by_place(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    """Variants by model and data set; where all share one, it needs no name in the titles."""
    models = {variant.first.model for variant in variants}
    datasets = {variant.first.dataset for variant in variants}
    groups: dict[str, list[Variant]] = {}
    for variant in variants:
        model = variant.model_name if len(models) > 1 else ""
        data = variant.first.dataset_name if len(datasets) > 1 else ""
        groups.setdefault(" · ".join(filter(None, (model, data))), []).append(variant)
    return groups


def _lines(
    variants: Sequence[Variant], colors: Mapping[str, int], kind: str, x: str, path: Sequence[str]
) -> list[Line]:
    lines = []
    for variant in variants:
        for run in variant.runs:
            curve = run.journal.curve(kind, x, *path)
            if not len(curve):
                continue
            if x == "seconds":
                curve = Curve(tuple(second / 60 for second in curve.x), curve.y)
            best = None
            if kind == "eval":
                curve = Curve(curve.x, tuple(100 * value for value in curve.y))
                best = max(range(len(curve)), key=curve.y.__getitem__)
            else:
                curve = thin(curve)
            note = f"seed {run.seed}" if len(variant.runs) > 1 and run.seed is not None else ""
            label = variant.sampler_name
            lines.append(Line(label, note, curve, colors[label], best))
    return lines
