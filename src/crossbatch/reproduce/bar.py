"""Is the default never worse than the best choice by hand? Judged from the runs of a grid.

    write_bar(GridFolder(Path("paper")))      # bar.md, .csv, .json

Three questions, each answered by a rule that test users have no say in:

- *auto* against the best of the paper's four strategies. Which one is best is decided on validation
  users: the best of four by test score owes part of its score to luck, and nobody could have chosen
  it.
- *the ceiling*: how far auto and that best one are from the full softmax, where it was trained.
- *the drift rule* against the best fixed bank size, which is again chosen on validation users; the
  best one by test score stands beside it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossbatch.errors import DataError
from crossbatch.reports import cells
from crossbatch.reports.gains import Gain, Gains
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reports.tables import metric_name
from crossbatch.reports.variants import MODEL_NAMES, Variant
from crossbatch.reproduce.folder import TITLES, GridFolder, place_of
from crossbatch.reproduce.sheet import Sheet, write_sheet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crossbatch.reports.runs import Run

RIVALS = ("uniform", "in_batch", "mixed", "cross_batch")
METRICS = ("recall@50", "ndcg@50")
DRIFT_METRIC, CLOSE = "ndcg@50", 0.01
VERDICTS = {"better": "better", "worse": "**worse**", "unclear": "level"}
NOTE = (
    "The best of the four by hand is the one with the highest mean validation {metric} over the "
    "seeds it shares with auto. Gains are relative, on test users, with a 95 % paired bootstrap "
    "interval over users and seeds; the verdict is on {metric}: *level* where the interval holds "
    "zero. CPU is the processor time of auto's steps over that of in-batch, as far as runs at "
    "different times can tell; *promised* is what auto measured before it began."
)


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


def write_bar(folder: GridFolder) -> list[Path]:
    """Write the judgement on every model that has runs for it."""
    runs = [run for run in folder.runs() if run.finished]
    groups, gains = _groups(runs), Gains(runs, METRICS)
    models = list(dict.fromkeys(group.model for group in groups))
    judged = [row for model in models if (row := judge(model, groups, gains))]
    limited = [row for model in models if (row := judge_drift(model, groups, gains))]
    if not judged and not limited:
        raise DataError(
            f"{folder.path / 'runs'} holds no run of auto or drift_limited beside its rivals; "
            "train some with --data and --samplers"
        )
    parts = []
    if judged:
        parts += [_table(judged), NOTE.format(metric=judged[0]["metric"]), summary(judged)]
    ceilings = [row for row in judged if row["ceiling"]]
    if ceilings:
        parts += ["## The ceiling", _ceiling_table(ceilings)]
    if limited:
        parts += ["## The drift rule", _drift_table(limited), DRIFT_NOTE]
    rows = [*judged, *limited]
    return write_sheet(folder, Sheet("bar", "The bar", parts, rows))


def _groups(runs: Sequence[Run]) -> list[Group]:
    found: dict[tuple[str, str, int | None], list[Run]] = {}
    for run in runs:
        place = place_of(run)
        found.setdefault((place.model, place.strategy, place.capacity), []).append(run)
    models = list(MODEL_NAMES)
    order = sorted(found, key=lambda key: models.index(key[0]) if key[0] in models else len(models))
    return [Group(*key, Variant(tuple(found[key]), {})) for key in order]


def judge(model: str, groups: Sequence[Group], gains: Gains) -> dict[str, Any] | None:
    """Auto against the best of four; None without runs of both."""
    mine = {g.strategy: g for g in groups if g.model == model and g.capacity is None}
    auto = mine.get("auto")
    if auto is None:
        return None
    metric = str(auto.runs[0].config.get("train", {}).get("metric", METRICS[0]))
    rivals = [mine[name] for name in RIVALS if name in mine]
    seeds = _shared([auto, *rivals])
    best = _best(rivals, metric, "valid", seeds)
    if best is None:
        return None
    lucky = _best(rivals, metric, "test", seeds)
    found = gains.over(_of(best, seeds), _of(auto, seeds))
    full = mine.get("full")
    return {
        "judged": "auto",
        "model": model,
        "metric": metric,
        "seeds": sorted(seed for seed in seeds if seed is not None),
        "chosen": _chosen(auto.runs),
        "best": best.strategy,
        "best_on_test": lucky.strategy if lucky else None,
        "rivals": [rival.strategy for rival in rivals],
        "test": {
            group.strategy: {key: group.mean(key, "test", seeds) for key in METRICS}
            for group in [auto, *rivals]
        },
        "gains": {key: _numbers(found.get(key)) for key in METRICS},
        "verdict": cells.verdict(found.get(metric)) or "unclear",
        "cpu": _ratio(auto.cpu(), mine["in_batch"].cpu() if "in_batch" in mine else None),
        "promised": _promised(auto.runs),
        "ceiling": {}
        if full is None
        else {
            "seeds": sorted(run.seed for run in full.runs if run.seed is not None),
            "auto": _numbers(gains.over(full.variant, auto.variant).get(metric)),
            "best": _numbers(gains.over(full.variant, best.variant).get(metric)),
            "test": {key: full.mean(key, "test", _shared([full])) for key in METRICS},
        },
    }


def judge_drift(model: str, groups: Sequence[Group], gains: Gains) -> dict[str, Any] | None:
    """The drift rule against fixed sizes of the same bank; size 0 is in-batch."""
    mine = [group for group in groups if group.model == model]
    limited = next((group for group in mine if group.strategy == "drift_limited"), None)
    fixed = [group for group in mine if group.strategy in ("in_batch", "balanced")]
    if limited is None or not any(group.strategy == "balanced" for group in fixed):
        return None
    seeds = _shared([limited, *fixed])
    best = _best(fixed, DRIFT_METRIC, "valid", seeds)
    lucky = _best(fixed, DRIFT_METRIC, "test", seeds)
    if best is None or lucky is None:
        return None
    found = gains.over(_of(best, seeds), _of(limited, seeds)).get(DRIFT_METRIC)
    beside = gains.over(_of(lucky, seeds), _of(limited, seeds)).get(DRIFT_METRIC)
    return {
        "judged": "drift_limited",
        "model": model,
        "metric": DRIFT_METRIC,
        "seeds": sorted(seed for seed in seeds if seed is not None),
        "sizes": sorted(_size(group) for group in fixed),
        "best": _size(best),
        "best_on_test": _size(lucky),
        "test": {
            "drift_limited": limited.mean(DRIFT_METRIC, "test", seeds),
            "best": best.mean(DRIFT_METRIC, "test", seeds),
            "best_on_test": lucky.mean(DRIFT_METRIC, "test", seeds),
        },
        "gains": {"best": _numbers(found), "best_on_test": _numbers(beside)},
        "within": found is not None and found.relative >= -CLOSE,
    }


def summary(judged: Sequence[Mapping[str, Any]]) -> str:
    """One sentence over all models."""
    verdicts = [row["verdict"] for row in judged]
    ahead = sum((row["gains"][row["metric"]] or {"relative": 0})["relative"] > 0 for row in judged)
    return (
        f"**Auto is worse than the best choice by hand on {verdicts.count('worse')} of "
        f"{len(judged)} models, level on {verdicts.count('unclear')}, better on "
        f"{verdicts.count('better')}; its mean is the higher one on {ahead}.**"
    )


def _shared(groups: Sequence[Group]) -> set[int | None]:
    return set.intersection(*({run.seed for run in group.runs} for group in groups))


def _of(group: Group, seeds: set[int | None]) -> Variant:
    return Variant(tuple(run for run in group.runs if run.seed in seeds), {})


def _best(groups: Sequence[Group], metric: str, split: str, seeds: set[int | None]) -> Group | None:
    known = [(value, g) for g in groups if (value := g.mean(metric, split, seeds)) is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _size(group: Group) -> int:
    """Rows of the bank."""
    return int(group.runs[0].config.get("sampler", {}).get("capacity", 0))


def _chosen(runs: Sequence[Run]) -> list[str]:
    """What auto decided on, each decision once."""
    texts = []
    for run in runs:
        advice = run.config.get("advice", {})
        sampler = advice.get("sampler", {})
        counts = (sampler.get(key) for key in ("num_uniform", "num_negatives", "capacity"))
        number = next((count for count in counts if count), None)
        often = f" every {sampler['every']}" if sampler.get("every", 1) > 1 else ""
        spared = " without later items" if advice.get("loss", {}).get("mask_later") else ""
        columns = f" {number}{often}" if number else ""
        texts.append(f"{sampler.get('name', '')}{columns}{spared}")
    return list(dict.fromkeys(texts))


def _promised(runs: Sequence[Run]) -> float | None:
    """The step that auto chose over the in-batch step, by its own measurement; the largest."""
    ratios = []
    for run in runs:
        advice = run.config.get("advice", {})
        facts, sampler = advice.get("facts", {}), advice.get("sampler", {})
        if not facts:
            continue
        uniform = sampler.get("num_uniform") or sampler.get("num_negatives") or 0
        added = uniform * facts["uniform_column_us"] / sampler.get("every", 1)
        if uniform:
            added += facts.get("any_uniform_us", 0.0) / sampler.get("every", 1)
        if cached := sampler.get("capacity", 0):
            added += facts.get("any_cached_us", 0.0) + cached * facts["cached_column_us"]
        if advice.get("loss", {}).get("mask_later"):
            added += facts.get("masking_us", 0.0)
        ratios.append(1 + added / (1e3 * facts["in_batch_ms"]))
    return max(ratios, default=None)


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None


def _numbers(value: Gain | None) -> dict[str, float | None] | None:
    if value is None:
        return None
    # A bootstrap is not exact to more digits, and these do not depend on how sums are ordered.
    low, high = (round(bound, 6) for bound in value.interval) if value.interval else (None, None)
    return {"relative": value.relative, "low": low, "high": high}


def _gain(value: Mapping[str, float | None] | None) -> str:
    if value is None or value["relative"] is None:
        return cells.NOTHING
    low, high = value["low"], value["high"]
    interval = None if low is None or high is None else (low, high)
    return literal(cells.gain(Gain(value["relative"], interval)))


def _times(value: float | None) -> str:
    return cells.NOTHING if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return cells.NOTHING if value is None else f"{100 * value:.2f}"


def _name(model: str) -> str:
    return literal(MODEL_NAMES.get(model, model))


def _table(judged: Sequence[Mapping[str, Any]]) -> str:
    heads = ["Model", "Auto took", "Best by hand", "Seeds"]
    heads += [f"Auto / best, {metric_name(key)}" for key in METRICS]
    heads += [f"Gain, {metric_name(key)}" for key in METRICS]
    heads += ["Verdict", "CPU / in-batch", "Promised"]
    lines = []
    for row in judged:
        test = row["test"]
        pairs = [
            f"{_percent(test['auto'][key])} / {_percent(test[row['best']][key])}" for key in METRICS
        ]
        lines.append(
            [
                _name(row["model"]),
                literal(", ".join(row["chosen"])),
                literal(TITLES[row["best"]]),
                str(len(row["seeds"])),
                *pairs,
                *(_gain(row["gains"][key]) for key in METRICS),
                VERDICTS[row["verdict"]],
                _times(row["cpu"]),
                _times(row["promised"]),
            ]
        )
    return pipe_table([literal(head) for head in heads], lines, words=3)


def _ceiling_table(judged: Sequence[Mapping[str, Any]]) -> str:
    metric = judged[0]["metric"]
    heads = ["Model", "Seeds of it", f"Full softmax, {metric_name(metric)}"]
    heads += ["Auto below it", "Best by hand below it"]
    lines = [
        [
            _name(row["model"]),
            str(len(row["ceiling"]["seeds"])),
            _percent(row["ceiling"]["test"].get(metric)),
            _gain(row["ceiling"]["auto"]),
            _gain(row["ceiling"]["best"]),
        ]
        for row in judged
    ]
    return pipe_table([literal(head) for head in heads], lines, words=1)


DRIFT_NOTE = (
    "The rule was fixed before its runs: a balanced bank of 79 batches, no warm-up, read as far as "
    "its rows are on average at most 0.1 of their length away from where they would be now. Fixed "
    "sizes are those of the same strategy; 0 is in-batch. *Within* asks for at most 1 % below the "
    "size that validation users would have chosen."
)


def _drift_table(limited: Sequence[Mapping[str, Any]]) -> str:
    name = metric_name(DRIFT_METRIC)
    heads = ["Model", "Seeds", "Best fixed M", f"{name} at it", f"{name} by the rule"]
    heads += ["Gain", "Within 1 %", "Best M on test", "Gain over that"]
    lines = [
        [
            _name(row["model"]),
            str(len(row["seeds"])),
            str(row["best"]),
            _percent(row["test"]["best"]),
            _percent(row["test"]["drift_limited"]),
            _gain(row["gains"]["best"]),
            "yes" if row["within"] else "**no**",
            str(row["best_on_test"]),
            _gain(row["gains"]["best_on_test"]),
        ]
        for row in limited
    ]
    return pipe_table([literal(head) for head in heads], lines, words=1)
