"""Gains of configurations over their reference, with paired bootstrap intervals.

The arithmetic of the draws is in `crossbatch.bootstrap`; here runs, seeds and users are paired up.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from crossbatch.bootstrap import Floats, gain_interval, resampled_means

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.reports.runs import Run
    from crossbatch.reports.variants import Variant

# The other metrics have no better and worse, or no per-user values.
GAIN_METRICS = ("recall", "ndcg_comirec", "ndcg", "hit_rate")

_Users = tuple[str, int]  # data set and number of test users


@dataclass(frozen=True, slots=True)
class Gain:
    """Relative change against in-batch; the interval is None without per-user metrics."""

    relative: float
    interval: tuple[float, float] | None

    @property
    def certain(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


class Gains:
    """Gains of variants over their reference, on one common draw of users per data set."""

    def __init__(self, runs: Sequence[Run], metrics: Sequence[str]) -> None:
        self.metrics = [key for key in metrics if key.split("@")[0] in GAIN_METRICS]
        # (run, metric) -> (whose users they are, resampled means [R])
        self.means: dict[tuple[Run, str], tuple[_Users, Floats]] = {}
        for users, columns in _per_user_columns(runs, self.metrics).items():
            values = np.stack(list(columns.values()), axis=1)  # [U, C]
            values = values[np.isfinite(values).all(axis=1)]  # users without a target are NaN
            if len(values):
                means = resampled_means(values)  # [R, C]
                self.means |= {key: (users, means[:, i]) for i, key in enumerate(columns)}

    def over(self, reference: Variant | None, variant: Variant) -> dict[str, Gain]:
        """The gain in every metric that both sides have; nothing for the reference itself."""
        if reference is None or reference is variant:
            return {}
        gains = {metric: self._gain(metric, variant, reference) for metric in self.metrics}
        return {metric: gain for metric, gain in gains.items() if gain}

    def _gain(self, metric: str, variant: Variant, reference: Variant) -> Gain | None:
        pairs = _pair_seeds(metric, variant.runs, reference.runs)
        base = statistics.fmean(other.metrics()[metric] for _, other in pairs) if pairs else 0.0
        if base <= 0:
            return None
        ours = statistics.fmean(run.metrics()[metric] for run, _ in pairs)
        return Gain(ours / base - 1, self._interval(metric, pairs))

    def _interval(
        self, metric: str, pairs: Sequence[tuple[Run, Run]]
    ) -> tuple[float, float] | None:
        known = [self.means.get((run, metric)) for pair in pairs for run in pair]
        columns = [found[1] for found in known if found]
        users = {found[0] for found in known if found}
        if len(columns) < len(known) or len(users) > 1:
            return None
        return gain_interval(np.stack(columns[::2], axis=1), np.stack(columns[1::2], axis=1))


def _per_user_columns(
    runs: Sequence[Run], metrics: Sequence[str]
) -> dict[_Users, dict[tuple[Run, str], npt.NDArray[np.float32]]]:
    """Per-user metrics [U] by run and metric; users pair up only within one data set and count."""
    columns: dict[_Users, dict[tuple[Run, str], npt.NDArray[np.float32]]] = {}
    for run in runs:
        for metric in sorted(set(metrics) & set(run.metrics())):
            values = run.per_user(metric)
            if values is not None:
                columns.setdefault((run.dataset, len(values)), {})[run, metric] = values
    return columns


def _pair_seeds(
    metric: str, ours: Sequence[Run], reference: Sequence[Run]
) -> list[tuple[Run, Run]]:
    """Runs of both sides with the same seed; if no seed is shared, in the order given."""
    done = [run for run in ours if metric in run.metrics()]
    others = [run for run in reference if metric in run.metrics()]
    by_seed = {run.seed: run for run in others if run.seed is not None}
    shared = [(run, by_seed[run.seed]) for run in done if run.seed in by_seed]
    return shared or list(zip(done, others, strict=False))
