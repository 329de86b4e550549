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

from crossbatch.reports.gains import Gain, Gains
from crossbatch.reports.runs import Run, numbers
from crossbatch.reports.variants import Variant, group_runs, reference_of

# In the order of the paper's Table 1, our textbook NDCG beside the paper's.
METRIC_NAMES = {
    "recall": "Recall",
    "ndcg_comirec": "NDCG (paper)",
    "ndcg": "NDCG",
    "hit_rate": "Hit rate",
    "ndcg_comirec_master": "NDCG (ComiRec master)",
    "head_recall": "Recall (head items)",
    "mid_recall": "Recall (mid items)",
    "tail_recall": "Recall (tail items)",
    "cold_recall": "Recall (cold items)",
    "coverage": "Coverage",
    "popularity_rank": "Popularity rank",
    "head_share": "Head share",
    "cold_share": "Cold share",
}
TABLE_METRICS = ("recall", "ndcg_comirec", "ndcg")
BASELINE_NAMES = {"popularity": "Popularity", "item_knn": "Item k-NN"}
TABLE_NOTE = (
    "Metrics in %, means over test users with the whole catalogue ranked; ± is the sample standard "
    "deviation over seeds. Gains are relative, over the in-batch row of the same model and the "
    "seeds both have, with a 95 % paired bootstrap interval over users and seeds."
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds; the spread is None for a single seed."""

    mean: float
    spread: float | None


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
    def headline(self) -> str:
        """The metric that summaries speak of: recall at the largest cut-off."""
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


def metric_name(key: str) -> str:
    """A metric key in print: "ndcg_comirec@50" is "NDCG@50 (paper)"."""
    kind, _, cutoff = key.partition("@")
    name, _, remark = METRIC_NAMES.get(kind, kind).partition(" (")
    return f"{name}@{cutoff}" + (f" ({remark}" if remark else "") if cutoff else name


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
        found = run.result.get("baselines")
        for name, values in found.items() if isinstance(found, Mapping) else ():
            metrics = numbers(values.get("test")) if isinstance(values, Mapping) else {}
            if metrics:
                row = Row(
                    model=BASELINE_NAMES.get(name, str(name)),
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
    """Every metric once: by cut-off, then in the order of `METRIC_NAMES`, newcomers last."""
    kinds = list(METRIC_NAMES)

    def place(key: str) -> tuple[int, int, str]:
        kind, _, cutoff = key.partition("@")
        rank = kinds.index(kind) if kind in kinds else len(kinds)
        return (int(cutoff) if cutoff.isdigit() else 0, rank, kind)

    return sorted(set(keys), key=place)
