"""The comparison over runs: one row per configuration, seeds averaged, gains over in-batch.

    comparison = compare(runs)
    for row in comparison.rows:
        print(row.label, row.metrics["recall@50"].mean, row.gains["recall@50"])

Metrics are fractions here; the writers print per cent. A spread is the sample standard deviation
over seeds. A gain is the relative change of the mean over the seeds that both sides have, with a
95 % paired bootstrap interval where both sides kept their per-user metrics.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from crossbatch.bootstrap import Floats, gain_interval, resampled_means
from crossbatch.reports.baseline_tables import BASELINE_NAMES
from crossbatch.reports.formatting import METRIC_NAMES
from crossbatch.reports.runs import UNSEEN, Run
from crossbatch.reports.variants import Variant, group_runs, position, reference_of

TABLE_METRICS = ("recall", "ndcg_comirec", "ndcg", "unseen_recall", "unseen_ndcg")
TABLE_NOTE = (
    "Metrics in %, means over test users with the whole catalogue ranked; ± is the sample standard "
    "deviation over seeds. Gains are relative, over the in-batch row of the same model and the "
    "seeds both have, with a 95 % paired bootstrap interval over users and seeds."
)
UNSEEN_NOTE = "(unseen) leaves out everything that a user has had before."
MARKS_NOTE = "▲ and ▼ mark intervals that leave out zero. Bold: best of the column."
# The other metrics have no better and worse, or no per-user values.
GAIN_METRICS = ("recall", "ndcg_comirec", "ndcg", "hit_rate", "unseen_recall", "unseen_ndcg")

_Users = tuple[str, int, bool]  # data set, number of test users, whether seen items are left out


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds; the spread is None for a single seed."""

    mean: float
    spread: float | None

    def as_dict(self) -> dict[str, float | None]:
        """Mean and standard deviation, as JSON files keep them."""
        return {"mean": self.mean, "sd": self.spread}


@dataclass(frozen=True, slots=True)
class Gain:
    """Relative change against in-batch; the interval is None without per-user metrics."""

    relative: float
    interval: tuple[float, float] | None

    @property
    def certain(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    def as_dict(self) -> dict[str, float | None]:
        """Gain and interval, as JSON files keep them."""
        # A bootstrap is not exact to more digits, and these do not depend on how sums are ordered.
        low, high = (round(x, 6) for x in self.interval) if self.interval else (None, None)
        return {"relative": self.relative, "low": low, "high": high}


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration over its seeds, or one baseline (then without a variant)."""

    model: str
    sampler: str
    dataset: str
    metrics: Mapping[str, Estimate]
    variant: Variant | None = None
    seconds_per_1000_steps: Estimate | None = None
    cpu_seconds_per_1000_steps: Estimate | None = None
    convergence_minutes: Estimate | None = None
    gains: Mapping[str, Gain] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Model and sampler, or the baseline's name."""
        return f"{self.model} · {self.sampler}" if self.sampler else self.model

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs behind the numbers."""
        return self.variant.runs if self.variant else ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, and the metric keys that at least one of them has."""

    rows: Sequence[Row]
    metrics: Sequence[str]

    @property
    def table_metrics(self) -> list[str]:
        """The columns of the main table."""
        return [key for key in self.metrics if key.split("@")[0] in TABLE_METRICS]

    @property
    def note(self) -> str:
        """What the numbers of the main table are."""
        unseen = any(key.startswith(UNSEEN) for key in self.table_metrics)
        return f"{TABLE_NOTE} {UNSEEN_NOTE}" if unseen else TABLE_NOTE

    @property
    def headline(self) -> str:
        """The main metric of summaries: recall at the largest cut-off."""
        recalls = [key for key in self.metrics if key.startswith("recall@")]
        return recalls[-1] if recalls else ""

    @property
    def gain_metrics(self) -> list[str]:
        """The metrics whose gain the main table shows: recall and the paper's NDCG."""
        wanted = [self.headline, self.headline.replace("recall", "ndcg_comirec")]
        return [key for key in wanted if any(key in row.gains for row in self.rows)]

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets, first seen first."""
        return list(dict.fromkeys(row.dataset for row in self.rows if row.variant))


def compare(runs: Sequence[Run]) -> Comparison:
    """Compare runs: baselines first, then one row per configuration."""
    variants = group_runs(runs)
    metrics = _metric_keys(
        key for run in runs for key in (*run.metrics(), *run.journal.keys("eval", "metrics"))
    )
    gains = Gains(runs, metrics)
    names = _dataset_names(runs)
    rows = [
        _row(each, names[each.first.dataset], gains.over(reference_of(each, variants), each))
        for each in variants
    ]
    return Comparison(rows=[*_baselines(runs, names), *rows], metrics=metrics)


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Mean and sample standard deviation of what is there."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Estimate(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


def _row(variant: Variant, dataset: str, gains: Mapping[str, Gain]) -> Row:
    finished = [run.metrics() for run in variant.runs]
    keys = dict.fromkeys(key for metrics in finished for key in metrics)
    estimates = {key: estimate(metrics.get(key) for metrics in finished) for key in keys}
    return Row(
        model=variant.model_name,
        sampler=variant.sampler_name,
        dataset=dataset,
        metrics={key: value for key, value in estimates.items() if value},
        variant=variant,
        seconds_per_1000_steps=estimate(run.seconds_per_1000_steps for run in variant.runs),
        cpu_seconds_per_1000_steps=estimate(run.cpu_seconds_per_1000_steps for run in variant.runs),
        convergence_minutes=estimate(run.convergence_minutes for run in variant.runs),
        gains=gains,
    )


def _baselines(runs: Sequence[Run], names: Mapping[str, str]) -> list[Row]:
    """Rows for what was measured beside the runs; each once per data set."""
    rows: dict[tuple[str, str], Row] = {}
    for run in runs:
        for name, metrics in run.baselines.items():
            row = Row(
                model=BASELINE_NAMES.get(name, name),
                sampler="",
                dataset=names[run.dataset],
                metrics={key: Estimate(value, None) for key, value in metrics.items()},
            )
            rows.setdefault((run.dataset, name), row)
    return list(rows.values())


def _dataset_names(runs: Sequence[Run]) -> dict[str, str]:
    """A name in print per data set: two data sets of one name show their checksums too."""
    names = {run.dataset: run.dataset_name for run in runs}
    shared = [name for name in names.values() if list(names.values()).count(name) > 1]
    return {key: f"{name} ({key[:8]})" if name in shared else name for key, name in names.items()}


def _metric_keys(keys: Iterable[str]) -> list[str]:
    """Every metric once: by cut-off, then in the order of `METRIC_NAMES`, others last."""

    def place(key: str) -> tuple[int, int, str]:
        kind, _, cutoff = key.partition("@")
        return (int(cutoff) if cutoff.isdigit() else 0, position(kind, METRIC_NAMES), kind)

    return sorted(set(keys), key=place)


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
                # Users whose targets were all seen are missing from one protocol only.
                users = run.dataset, len(values), metric.startswith(UNSEEN)
                columns.setdefault(users, {})[run, metric] = values
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
