"""Baselines that were tuned and measured beside runs, and when training reached the best of them.

    for each in read_tuned(run.baselines_file["baselines"]): print(each.label, each.settings)
    time_to_quality(run.name, run.journal, found)     # "first reached RP3β (21.34 %) after 12 …"

`crossbatch evaluate` writes them into `baselines.json` of a run folder. Values are of the metric
and the validation users by which the run's best model was chosen, so that its journal compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossbatch.reports.formatting import NOTHING, metric_name
from crossbatch.reports.journal import Journal, follow, number

if TYPE_CHECKING:
    from crossbatch.reports.runs import Run

BASELINE_NAMES = {
    "popularity": "Popularity",
    "item_knn": "Item k-NN",
    "rp3beta": "RP3β",
    "ease": "EASE",
    "als": "ALS (implicit)",
}


@dataclass(frozen=True, slots=True)
class TunedBaseline:
    """A tuned baseline: its settings, the validation metric with them, and what it cost."""

    name: str
    settings: Mapping[str, float]
    value: float
    fit_cpu_seconds: float
    tuning_cpu_seconds: float

    @property
    def label(self) -> str:
        """Its name in print."""
        return BASELINE_NAMES.get(self.name, self.name)

    @property
    def texts(self) -> list[str]:
        """Name, settings, validation metric in per cent, processor seconds of a fit and of all."""
        settings = ", ".join(f"{key} {value:g}" for key, value in self.settings.items())
        costs = (self.fit_cpu_seconds, self.tuning_cpu_seconds)
        return [
            self.label,
            settings or NOTHING,
            f"{100 * self.value:.2f}",
            *(f"{seconds:.1f}" for seconds in costs),
        ]


TUNED_NOTE = (
    "Settings were chosen on validation users; the validation metric is the one that chose the "
    "runs' best models, in per cent. CPU s is processor time, of one fit and of the whole search; "
    "that of a run counts its training steps until the evaluation."
)
HEADS = ("Baseline", "Settings", "Validation, %", "Fit, CPU s", "Tuning, CPU s")


def read_tuned(entries: object) -> list[TunedBaseline]:
    """Read the tuned baselines of `baselines.json`, or of what `crossbatch evaluate` found."""
    found = []
    for name, entry in entries.items() if isinstance(entries, Mapping) else ():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("settings"), Mapping):
            continue
        settings = {str(k): v for k, v in entry["settings"].items() if number(v) is not None}
        numbers = [
            number(entry.get(key)) for key in ("value", "fit_cpu_seconds", "tuning_cpu_seconds")
        ]
        if None not in numbers:
            value, fit, tuning = (float(each or 0.0) for each in numbers)
            found.append(TunedBaseline(str(name), settings, value, fit, tuning))
    return found


def time_to_quality(name: str, journal: Journal, baselines: Sequence[TunedBaseline]) -> str | None:
    """One sentence: how long the run `name` trained until it was as good as the best baseline."""
    if not baselines:
        return None
    best = max(baselines, key=lambda each: each.value)
    goal = f"{best.label} ({100 * best.value:.2f} %)"
    seen = []
    for event in journal.of("eval"):
        value, step = number(event.get("value")), number(event.get("step"))
        if value is None or step is None:
            continue
        if value >= best.value:
            seconds = number(event.get("cpu_seconds")) or 0.0
            return (
                f"{name} reached {goal} after {seconds:.1f} CPU s of training, at step {step:,.0f}"
            )
        seen.append(value)
    if not seen:
        return f"{name} cannot be compared with {goal}: its journal is of an earlier release"
    return f"{name} did not reach {goal}: its best evaluation has {100 * max(seen):.2f} %"


@dataclass(frozen=True, slots=True)
class BaselineTable:
    """The tuned baselines of one data set and metric, and what they say about runs."""

    title: str
    rows: list[list[str]]  # of texts, under `HEADS`
    sentences: list[str]


def tuned_tables(runs: Sequence[Run]) -> list[BaselineTable]:
    """One table for all runs whose `baselines.json` is of the same data set and metric."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if tuned(run):
            groups.setdefault((run.dataset, deciding_name(run.baselines_file)), []).append(run)
    several = len({dataset for dataset, _ in groups}) > 1
    tables = []
    for (_, metric), group in groups.items():
        known = {each.name: each for run in group for each in tuned(run)}
        found = [time_to_quality(run.name, run.journal, tuned(run)) for run in group]
        title = " · ".join(filter(None, [metric, group[0].dataset_name if several else ""]))
        rows = [each.texts for each in known.values()]
        tables.append(BaselineTable(title, rows, [f"{text}." for text in found if text]))
    return tables


def tuned(run: Run) -> list[TunedBaseline]:
    """The baselines that were tuned beside a run."""
    return read_tuned(run.baselines_file.get("baselines"))


def deciding_metrics(result: Mapping[str, Any]) -> Mapping[str, float]:
    """The validation metrics in `result.json` by which the best model was chosen."""
    unseen = follow(result, "metric", "exclude_seen")
    metrics: Mapping[str, float] = result.get("valid_unseen" if unseen else "valid", {})
    return metrics


def deciding_name(about: Mapping[str, Any]) -> str:
    """In print, which metric chose the best model: "Recall@50 (unseen)"."""
    name = str(about.get("name") or about.get("metric") or "")
    return metric_name(f"unseen_{name}" if about.get("exclude_seen") else name)
