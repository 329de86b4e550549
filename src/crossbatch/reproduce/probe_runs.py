"""Runs that measured drift and the lemma, as curves over training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossbatch.reports.journal import Curve, number
from crossbatch.reports.plots import Mark
from crossbatch.reports.variants import MODEL_NAMES, model_title, position
from crossbatch.reproduce.design import STRATEGIES, strategy_color, strategy_title
from crossbatch.reproduce.folder import GridFolder, run_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.reports.runs import Run


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """A run that measured drift and the lemma."""

    run: Run
    model: str
    strategy: str

    @property
    def title(self) -> str:
        """The strategy in print."""
        return strategy_title(self.strategy)

    @property
    def color(self) -> int:
        """The strategy's colour, the same in every figure."""
        return strategy_color(self.strategy)

    @property
    def model_title(self) -> str:
        """The model in print."""
        return model_title(self.model)

    @property
    def warmup(self) -> float | None:
        """Steps before the bank was read, if there was one."""
        return number(self.run.config.get("sampler", {}).get("warmup_steps"))

    def curve(self, *path: str) -> Curve:
        """A measured value over training."""
        return self.run.journal.curve("probe", "step", *path)

    def measurements(self, measured: str) -> list[dict[str, Any]]:
        """Every measurement of a kind, as JSON keeps it."""
        return [
            {
                "model": self.model,
                "strategy": self.strategy,
                "run": f"probes/{self.run.path.name}",
                "step": event["step"],
                measured: event[measured],
            }
            for event in self.run.journal.of("probe")
            if measured in event
        ]


def read_probes(folder: GridFolder) -> list[ProbeRun]:
    """The probe runs of a grid, models in the order of the tables."""
    named = [(run, run_name(run)) for run in folder.runs("probes")]
    return sorted(
        (ProbeRun(run, name.model, name.strategy) for run, name in named),
        key=lambda probe: (
            position(probe.model, MODEL_NAMES),
            position(probe.strategy, STRATEGIES),
        ),
    )


def warmup_marks(probes: Sequence[ProbeRun], model: str) -> list[Mark]:
    """The end of the warm-up that the banked runs of a model chose."""
    steps = dict.fromkeys(probe.warmup for probe in probes if probe.model == model and probe.warmup)
    return [Mark(step, "warm-up ends") for step in steps if step is not None]


def at_step(curve: Curve, step: float) -> tuple[float, float] | None:
    """The first point at or after a step; the last one if there is none."""
    points = list(zip(curve.x, curve.y, strict=True))
    return next((point for point in points if point[0] >= step), points[-1] if points else None)
