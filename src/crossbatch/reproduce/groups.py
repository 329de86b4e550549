"""Runs of a grid by model, strategy and bank size, to be compared over the seeds they share."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossbatch.reports import formatting
from crossbatch.reports.comparison import Gain
from crossbatch.reports.markdown import literal
from crossbatch.reports.variants import MODEL_NAMES, Variant
from crossbatch.reproduce.folder import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crossbatch.reports.runs import Run


@dataclass(frozen=True, slots=True)
class Group:
    """The seeds of one model with one strategy, at one bank size."""

    model: str
    strategy: str
    capacity: int | None
    variant: Variant

    @property
    def runs(self) -> Sequence[Run]:
        """By seed."""
        return self.variant.runs

    def mean(self, metric: str, split: str, seeds: set[int | None]) -> float | None:
        """Over the wanted seeds; None if one is missing."""
        values = [run.metrics(split).get(metric) for run in self.runs if run.seed in seeds]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known and len(known) == len(seeds) else None

    def cpu(self) -> float | None:
        """Processor seconds per 1000 steps, over seeds."""
        known = [value for run in self.runs if (value := run.cpu_seconds_per_1000_steps)]
        return statistics.fmean(known) if known else None


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """In the order of the models."""
    found: dict[tuple[str, str, int | None], list[Run]] = {}
    for run in runs:
        place = place_of(run)
        found.setdefault((place.model, place.strategy, place.capacity), []).append(run)
    models = list(MODEL_NAMES)
    order = sorted(found, key=lambda key: models.index(key[0]) if key[0] in models else len(models))
    return [Group(*key, Variant(tuple(found[key]), {})) for key in order]


def shared_seeds(groups: Sequence[Group]) -> set[int | None]:
    """Seeds that every group has."""
    return set.intersection(*({run.seed for run in group.runs} for group in groups))


def with_seeds(group: Group, seeds: set[int | None]) -> Variant:
    """The group's runs of these seeds."""
    return Variant(tuple(run for run in group.runs if run.seed in seeds), {})


def best_of(
    groups: Sequence[Group], metric: str, split: str, seeds: set[int | None]
) -> Group | None:
    """The one with the highest mean of a metric; None if none has all seeds."""
    known = [(value, g) for g in groups if (value := g.mean(metric, split, seeds)) is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def gain_numbers(value: Gain | None) -> dict[str, float | None] | None:
    """As a sheet's JSON keeps it."""
    if value is None:
        return None
    # A bootstrap is not exact to more digits, and these do not depend on how sums are ordered.
    low, high = (round(bound, 6) for bound in value.interval) if value.interval else (None, None)
    return {"relative": value.relative, "low": low, "high": high}


def gain_cell(value: Mapping[str, float | None] | None) -> str:
    """What `gain_numbers` returned, for a table."""
    if value is None or value["relative"] is None:
        return formatting.NOTHING
    low, high = value["low"], value["high"]
    interval = None if low is None or high is None else (low, high)
    return literal(formatting.gain(Gain(value["relative"], interval)))


def percent_cell(value: float | None) -> str:
    """For a table."""
    return formatting.NOTHING if value is None else f"{100 * value:.2f}"


def model_cell(model: str) -> str:
    """For a table."""
    return literal(MODEL_NAMES.get(model, model))
