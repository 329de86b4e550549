"""Feature drift of the item tower over training (Eq. 5, the paper's figure on stability).

    write_drift(GridFolder(Path("paper")))       # drift.md, .csv, .json, figures/drift.*

D(t; Δt) sums the distance that every item's vector moved in the last Δt mini-batches. The sum, as
in the paper, grows with the catalogue; the mean does not, and the relative form (divided by the
vectors' lengths) also compares models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.errors import DataError
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reports.plots import Line, Plot
from crossbatch.reproduce.page import Figure, Page, run_link, write_page
from crossbatch.reproduce.probe_runs import ProbeRun, at_step, read_probes, warmup_marks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.reproduce.folder import GridFolder

INTERVALS = ("1", "5", "10")
FORMS = {"sum": "sum over items", "mean": "mean over items", "relative": "share of length"}
FIGURE_FORMS = {"sum": "drift, sum over items", "relative": "drift, share of vector length"}
NOTE = (
    "Drift of all items' vectors over the last Δt mini-batches: at the first measurement, where "
    "the warm-up ends, and at the last measurement. Sum is the paper's form (Eq. 5)."
)


def write_drift(folder: GridFolder) -> list[Path]:
    """Write the page from the probe runs of the folder."""
    probes = [probe for probe in read_probes(folder) if len(probe.curve("drift", "10", "sum"))]
    if not probes:
        raise DataError(f"{folder.path / 'probes'} holds no drift; train its runs with --data")
    page = Page(
        "drift",
        "Feature drift",
        [_table(probes, folder), NOTE],
        [row for probe in probes for row in probe.measurements("drift")],
        [
            Figure(
                "drift",
                drift_plots(probes),
                len(dict.fromkeys(probe.model for probe in probes)),
                "Feature drift while training with in-batch negatives, by Δt mini-batches.",
            )
        ],
    )
    return write_page(folder, page)


def drift_plots(probes: Sequence[ProbeRun]) -> list[Plot]:
    """Drift by step for the in-batch run of each model: the paper's sum, and the relative form."""
    plots = []
    for form, y_label in FIGURE_FORMS.items():
        for probe in _one_per_model(probes):
            lines = [
                Line(f"Δt = {interval}", "", probe.curve("drift", interval, form), color)
                for color, interval in enumerate(INTERVALS)
            ]
            marks = warmup_marks(probes, probe.model)
            plots.append(
                Plot(f"drift-{form}", probe.model_title, "step", y_label, lines, marks=marks)
            )
    return plots


def _one_per_model(probes: Sequence[ProbeRun]) -> list[ProbeRun]:
    """One run a model: in-batch, as in the paper, or the first there is."""
    chosen: dict[str, ProbeRun] = {}
    for probe in probes:
        if probe.strategy == "in_batch" or probe.model not in chosen:
            chosen[probe.model] = probe
    return list(chosen.values())


def _table(probes: Sequence[ProbeRun], folder: GridFolder) -> str:
    heads = ["Model", "Negatives", "Δt"]
    heads += [f"{FORMS[form]}, {when}" for form in FORMS for when in ("first", "warm-up", "last")]
    heads.append("Run")
    lines = []
    for probe in probes:
        marks = warmup_marks(probes, probe.model)
        end = marks[0].x if marks else 0.0
        for interval in INTERVALS:
            line = [literal(probe.model_title), literal(probe.title), interval]
            for form in FORMS:
                curve = probe.curve("drift", interval, form)
                points = [at_step(curve, step) for step in (0.0, end, float("inf"))]
                line += ["–" if point is None else f"{point[1]:.4g}" for point in points]
            lines.append([*line, run_link(probe.run, folder, probe.run.name)])
    return pipe_table(heads, lines, words=2)
