"""The lemma, measured: what cached vectors do to the user-side gradient, and the bound C ε.

    write_lemma(GridFolder(Path("paper")))       # lemma.md, .csv, .json, figures/lemma.*

For users i and banked items j with logit o = uᵀv, the deviation ‖∂ô/∂θ − ∂o/∂θ‖² comes from using
the cached v̂ instead of the fresh v; ε = ‖v̂ − v‖², and C = ‖∂u/∂θ‖² is the constant that the paper
reports to be at most 1. θ are the parameters that the user vector depends on, tables included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.errors import DataError
from crossbatch.reports.journal import Curve
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reports.plots import Line, Mark, Plot
from crossbatch.reports.svg import COLORS
from crossbatch.reproduce.page import Figure, Page, run_link, write_page
from crossbatch.reproduce.probe_runs import ProbeRun, at_step, read_probes, warmup_marks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.reproduce.folder import GridFolder

PAPER_CONSTANT = 1.0
NOTE = (
    "Means over 8 users and all rows of the bank, where the warm-up ends and at the last "
    "measurement; a fresh vector has no deviation. Relative error: squared deviation over squared "
    "gradient. C needed: the largest deviation / ε of any pair, over all of training; C of the "
    "tower: the largest ‖∂u/∂θ‖². The paper says C ≤ 1."
)


def write_lemma(folder: GridFolder) -> list[Path]:
    """Write the page from the probe runs of the folder that have a bank."""
    probes = [probe for probe in read_probes(folder) if len(probe.curve("lemma", "bound"))]
    if not probes:
        raise DataError(f"{folder.path / 'probes'} holds no banked run; train some with --data")
    columns = len(_by_model(probes))
    figure = Figure(
        "lemma",
        [*_deviation_plots(probes), *_constant_plots(probes)],
        columns,
        "Gradient deviation by cached vectors against its bound, and the constant C.",
    )
    rows = [row for probe in probes for row in probe.measurements("lemma")]
    page = Page("lemma", "The lemma", [_table(probes, folder), NOTE], rows, [figure])
    return write_page(folder, page)


def _deviation_plots(probes: Sequence[ProbeRun]) -> list[Plot]:
    plots = []
    for model, mine in _by_model(probes).items():
        lines = []
        for probe in mine:
            deviation, bound = (_positive(probe.curve("lemma", k)) for k in ("deviation", "bound"))
            lines.append(Line(probe.title, "", deviation, probe.color))
            lines.append(Line(f"{probe.title}: bound C ε", "", bound, probe.color + COLORS))
        marks = warmup_marks(probes, model)
        plots.append(_plot("lemma-deviation", mine, "squared gradient deviation", lines, marks))
    return plots


def _constant_plots(probes: Sequence[ProbeRun]) -> list[Plot]:
    plots = []
    for model, mine in _by_model(probes).items():
        lines = [
            Line(probe.title, "", _positive(probe.curve("lemma", "jacobian")), probe.color)
            for probe in mine
        ]
        steps = [step for line in lines for step in line.curve.x]
        if steps:
            flat = Curve((min(steps), max(steps)), (PAPER_CONSTANT, PAPER_CONSTANT))
            lines.append(Line("C = 1, the paper", "", flat, COLORS - 1))
        marks = warmup_marks(probes, model)
        plots.append(_plot("lemma-constant", mine, "C, largest of 8 users", lines, marks))
    return plots


def _plot(
    name: str, mine: Sequence[ProbeRun], y_label: str, lines: Sequence[Line], marks: Sequence[Mark]
) -> Plot:
    return Plot(name, mine[0].model_title, "step", y_label, lines, marks=marks, log_y=True)


def _by_model(probes: Sequence[ProbeRun]) -> dict[str, list[ProbeRun]]:
    groups: dict[str, list[ProbeRun]] = {}
    for probe in probes:
        groups.setdefault(probe.model, []).append(probe)
    return groups


def _positive(curve: Curve) -> Curve:
    """The points that a logarithmic axis can show."""
    points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y > 0]
    return Curve(tuple(x for x, _ in points), tuple(y for _, y in points))


def _table(probes: Sequence[ProbeRun], folder: GridFolder) -> str:
    names = {
        "epsilon": "ε",
        "deviation": "deviation",
        "bound": "bound C ε",
        "relative": "relative error",
    }
    heads = ["Model", "Negatives"]
    heads += [f"{name}, {when}" for name in names.values() for when in ("warm-up", "last")]
    heads += ["C needed", "C of the tower", "Run"]
    lines = []
    for probe in probes:
        line = [literal(probe.model_title), literal(probe.title)]
        for key in names:
            curve = probe.curve("lemma", key)
            for step in (probe.warmup or 0.0, float("inf")):
                point = at_step(curve, step)
                line.append("–" if point is None else f"{point[1]:.3g}")
        line += [f"{max(probe.curve('lemma', key).y):.3g}" for key in ("constant", "jacobian")]
        lines.append([*line, run_link(probe.run, folder, probe.run.name)])
    return pipe_table(heads, lines, words=2)
