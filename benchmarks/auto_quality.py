"""Is `auto` ever worse than the best sampler chosen by hand? Judged from the runs of a grid.

    crossbatch reproduce table1 --data books --out paper --samplers in_batch,uniform,mixed,auto
    python benchmarks/auto_quality.py judge paper                # auto.md, .csv, .json
    python benchmarks/auto_quality.py train --data books --out paper --samplers sized_bank

Three questions; test users decide none of the choices that are compared:

- *auto* against the best of the paper's four strategies. Which one is best is decided on validation
  users: the best of four by test score owes part of its score to luck.
- *the full softmax*: how far auto and that best one are below it, where it was trained.
- *bank size rules* against the best fixed bank size, also chosen on validation users. A rule reads
  a bank as far as its rows are fresh; `train` is `crossbatch reproduce table1` with these
  strategies.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.errors import DataError
from crossbatch.reports import formatting
from crossbatch.reports.comparison import Gain, Gains
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reports.variants import MODEL_NAMES, Variant, model_title, position
from crossbatch.reproduce.design import STRATEGIES, Strategy, strategy_title
from crossbatch.reproduce.folder import GridFolder, run_name, write_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crossbatch.reports.runs import Run

BY_HAND = ("uniform", "in_batch", "mixed", "cross_batch")
METRICS = ("recall@50", "ndcg@50")
RULE_METRIC, CLOSE = "ndcg@50", 0.01
VERDICTS = {"better": "better", "worse": "**worse**", "unclear": "level"}


# Bank size by measured drift, fixed before any of their runs: no warm-up, and the same limits for
# every model and every data set. "drift_limited" has the largest bank of Table 2, "safe_bank" one
# of 16 batches. "sized_bank", which came after those had missed on MovieLens, also leaves out what
# the bank would only repeat.
def _rule(title: str, batches: int, **more: Any) -> Strategy:
    options = {"name": "cross_batch", "item_gradient": "balanced", "warmup_steps": 0}
    options |= {"max_staleness": 0.1, **more}
    return Strategy(
        f"Cross-batch, drift-limited{title}",
        lambda B, _: {**options, "capacity": batches * B},
        settings_of="balanced",
        fixed=True,
        in_table1=False,
    )


RULES = {
    "drift_limited": _rule("", 79),
    "safe_bank": _rule(", 16 B", 16, guard=True),
    "sized_bank": _rule(", no repeats", 79, max_repeats=1.0, guard=True),
}
RULE_NAMES = {"drift_limited": "79 B", "safe_bank": "16 B", "sized_bank": "79 B, no repeats"}
NOTE = (
    "The best of the four by hand is the one with the highest mean validation {metric} over the "
    "seeds it shares with auto. Gains are relative, on test users, with a 95 % paired bootstrap "
    "interval over users and seeds; the verdict is on {metric}: *level* where the interval holds "
    "zero. CPU is the processor time of auto's steps over that of in-batch, as far as runs at "
    "different times can tell; *promised* is what auto measured before it began."
)
RULE_NOTE = (
    "Rules fixed before their runs: a balanced bank of 79 or of 16 batches without warm-up, read "
    "as far as its rows are on average at most 0.1 of their length away from where they would be "
    "now; and, *no repeats*, at most 1/Σq² of them. Fixed sizes are those of the same strategy; 0 "
    "is in-batch. *Within* asks for at most 1 % below the size that validation users would have "
    "chosen."
)


def write_judgement(folder: GridFolder) -> list[Path]:
    """Write the judgement on every model that has runs for it."""
    runs = [run for run in folder.runs() if run.finished]
    groups, gains = groups_of(runs), Gains(runs, METRICS)
    models = list(dict.fromkeys(group.model for group in groups))
    judged = [row for model in models if (row := judge_auto(model, groups, gains))]
    ruled = [row for pair in product(models, RULES) if (row := judge_rule(*pair, groups, gains))]
    if not judged and not ruled:
        raise DataError(
            f"{folder.path / 'runs'} holds no run of auto or of a bank size rule beside those that "
            "it is compared with; train some with --data and --samplers"
        )
    parts = []
    if judged:
        parts += [_table(judged), NOTE.format(metric=judged[0]["metric"]), summary(judged)]
    ceilings = [row for row in judged if row["ceiling"]]
    if ceilings:
        parts += ["## The full softmax", _ceiling_table(ceilings)]
    if ruled:
        parts += ["## Bank size rules", _rule_table(ruled), RULE_NOTE]
    return write_page(folder, "auto", "Auto against the best by hand", parts, judged + ruled)


def judge_auto(model: str, groups: Sequence[Group], gains: Gains) -> dict[str, Any] | None:
    """Auto against the best of four; None without runs of both."""
    mine = {g.strategy: g for g in groups if g.model == model and g.capacity is None}
    auto = mine.get("auto")
    if auto is None:
        return None
    metric = str(auto.runs[0].config.get("train", {}).get("metric", METRICS[0]))
    others = [mine[name] for name in BY_HAND if name in mine]
    seeds = shared_seeds([auto, *others])
    best = best_of(others, metric, "valid", seeds)
    if best is None:
        return None
    best_on_test = best_of(others, metric, "test", seeds)
    found = gains.over(with_seeds(best, seeds), with_seeds(auto, seeds))
    full = mine.get("full")
    return {
        "judged": "auto",
        "model": model,
        "metric": metric,
        "seeds": sorted(seed for seed in seeds if seed is not None),
        "chosen": _chosen(auto.runs),
        "best": best.strategy,
        "best_on_test": best_on_test.strategy if best_on_test else None,
        "rivals": [other.strategy for other in others],
        "test": {
            group.strategy: {key: group.mean(key, "test", seeds) for key in METRICS}
            for group in [auto, *others]
        },
        "gains": {key: _numbers(found.get(key)) for key in METRICS},
        "verdict": formatting.verdict(found.get(metric)) or "unclear",
        "cpu": _ratio(auto, mine.get("in_batch")),
        "promised": _promised(auto.runs),
        "ceiling": {}
        if full is None
        else {
            "seeds": sorted(run.seed for run in full.runs if run.seed is not None),
            "auto": _numbers(gains.over(full.variant, auto.variant).get(metric)),
            "best": _numbers(gains.over(full.variant, best.variant).get(metric)),
            "test": {key: full.mean(key, "test", shared_seeds([full])) for key in METRICS},
        },
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
        if sampler.get("capacity"):
            added += 1e3 * (facts["deferred_ms"] - facts["in_batch_ms"])
        if advice.get("loss", {}).get("mask_later"):
            added += facts.get("masking_us", 0.0)
        ratios.append(1 + added / (1e3 * facts["in_batch_ms"]))
    return max(ratios, default=None)


def judge_rule(
    model: str, rule: str, groups: Sequence[Group], gains: Gains
) -> dict[str, Any] | None:
    """A bank size rule against fixed sizes of the same bank; size 0 is in-batch."""
    mine = [group for group in groups if group.model == model]
    limited = next((group for group in mine if group.strategy == rule), None)
    fixed = [group for group in mine if group.strategy in ("in_batch", "balanced")]
    if limited is None or not any(group.strategy == "balanced" for group in fixed):
        return None
    seeds = shared_seeds([limited, *fixed])
    best = best_of(fixed, RULE_METRIC, "valid", seeds)
    best_on_test = best_of(fixed, RULE_METRIC, "test", seeds)
    if best is None or best_on_test is None:
        return None
    ruled = with_seeds(limited, seeds)
    found = gains.over(with_seeds(best, seeds), ruled).get(RULE_METRIC)
    beside = gains.over(with_seeds(best_on_test, seeds), ruled).get(RULE_METRIC)
    return {
        "judged": rule,
        "model": model,
        "metric": RULE_METRIC,
        "seeds": sorted(seed for seed in seeds if seed is not None),
        "sizes": sorted(_size(group) for group in fixed),
        "best": _size(best),
        "best_on_test": _size(best_on_test),
        "test": {
            "rule": limited.mean(RULE_METRIC, "test", seeds),
            "best": best.mean(RULE_METRIC, "test", seeds),
            "best_on_test": best_on_test.mean(RULE_METRIC, "test", seeds),
        },
        "gains": {"best": _numbers(found), "best_on_test": _numbers(beside)},
        "within": found is not None and found.relative >= -CLOSE,
    }


def _rule_table(ruled: Sequence[Mapping[str, Any]]) -> str:
    """A line for each model."""
    name = metric_name(RULE_METRIC)
    heads = ["Model", "Rule", "Seeds", "Best fixed M", f"{name} at it", f"{name} by the rule"]
    heads += ["Gain", "Within 1 %", "Best M on test", "Gain over that"]
    lines = [
        [
            literal(model_title(row["model"])),
            RULE_NAMES[row["judged"]],
            str(len(row["seeds"])),
            str(row["best"]),
            _percent(row["test"]["best"]),
            _percent(row["test"]["rule"]),
            _gain(row["gains"]["best"]),
            "yes" if row["within"] else "**no**",
            str(row["best_on_test"]),
            _gain(row["gains"]["best_on_test"]),
        ]
        for row in ruled
    ]
    return pipe_table([literal(head) for head in heads], lines, words=1)


def _size(group: Group) -> int:
    """Rows of the bank."""
    return int(group.runs[0].config.get("sampler", {}).get("capacity", 0))


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
        name = run_name(run)
        found.setdefault((name.model, name.strategy, name.capacity), []).append(run)
    order = sorted(found, key=lambda key: position(key[0], MODEL_NAMES))
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


def _times(value: float | None) -> str:
    return formatting.NOTHING if value is None else f"{value:.2f}"


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
                literal(model_title(row["model"])),
                literal(", ".join(row["chosen"])),
                literal(strategy_title(row["best"])),
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
            literal(model_title(row["model"])),
            str(len(row["ceiling"]["seeds"])),
            _percent(row["ceiling"]["test"].get(metric)),
            _gain(row["ceiling"]["auto"]),
            _gain(row["ceiling"]["best"]),
        ]
        for row in judged
    ]
    return pipe_table([literal(head) for head in heads], lines, words=1)


def _ratio(ours: Group, other: Group | None) -> float | None:
    """Processor time of a step over another's."""
    mine, theirs = ours.cpu(), other.cpu() if other else None
    return mine / theirs if mine and theirs else None


def _numbers(value: Gain | None) -> dict[str, float | None] | None:
    return value.as_dict() if value else None


def _gain(value: Mapping[str, Any] | None) -> str:
    """A gain as `Gain.as_dict` returned it."""
    if value is None:
        return formatting.NOTHING
    interval = None if value["low"] is None else (value["low"], value["high"])
    return literal(formatting.gain(Gain(value["relative"], interval)))


def _percent(value: float | None) -> str:
    return formatting.NOTHING if value is None else f"{100 * value:.2f}"


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["judge", *folders] if folders:
            for folder in folders:
                for path in write_judgement(GridFolder(Path(folder))):
                    print(path)
        case ["train", *options]:
            from crossbatch.cli import app

            STRATEGIES.update(RULES)
            app(["reproduce", "table1", *options])
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
