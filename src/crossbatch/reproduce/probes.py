"""What probe runs wrote down, as curves over training; shared by `drift` and `lemma`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossbatch.reports.journal import Curve, number
from crossbatch.reports.plots import Mark
from crossbatch.reports.variants import MODEL_NAMES
from crossbatch.reproduce.folder import COLORS, TITLES, GridFolder, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.reports.runs import Run


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe run and where it stands."""

    run: Run
    model: str
    strategy: str

    @property
    def title(self) -> str:
        """The strategy in print."""
        return TITLES.get(self.strategy, self.strategy)

    @property
    def color(self) -> int:
        """The strategy's colour, the same in every figure."""
        return COLORS.get(self.strategy, len(COLORS))

    @property
    def model_title(self) -> str:
        """The model in print."""
        return MODEL_NAMES.get(self.model, self.model)

    @property
    def warmup(self) -> float | None:
        """Steps before the bank was read, if there was one."""
        return number(self.run.config.get("sampler", {}).get("warmup_steps"))

    def curve(self, *path: str) -> Curve:
        """A measured value over training."""
        return self.run.journal.curve("probe", "step", *path)

    def records(self, measured: str) -> list[dict[str, Any]]:
        """Every measurement of a kind, as a sheet's JSON keeps it."""
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


def read_probes(folder: GridFolder) -> list[Probed]:
    """The probe runs of a grid, models in the order of the tables."""
    found = []
    for run in folder.runs("probes"):
        place = place_of(run)
        found.append(Probed(run, place.model, place.strategy))
    models, strategies = list(MODEL_NAMES), list(TITLES)
    return sorted(
        found,
        key=lambda probed: (
            models.index(probed.model) if probed.model in models else len(models),
            strategies.index(probed.strategy) if probed.strategy in strategies else len(strategies),
        ),
    )


def warmup_marks(probes: Sequence[Probed], model: str) -> list[Mark]:
    """The end of the warm-up that the banked runs of a model chose."""
    steps = dict.fromkeys(
        probed.warmup for probed in probes if probed.model == model and probed.warmup
    )
    return [Mark(step, "warm-up ends") for step in steps if step is not None]


def at_step(curve: Curve, step: float) -> tuple[float, float] | None:
    """The first point at or after a step; the last one if there is none."""
    points = list(zip(curve.x, curve.y, strict=True))
    return next((point for point in points if point[0] >= step), points[-1] if points else None)
