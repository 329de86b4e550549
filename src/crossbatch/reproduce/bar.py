"""Is the default never worse than the best choice by hand? Judged from the runs of a grid.

    write_bar(GridFolder(Path("paper")))      # bar.md, .csv, .json

Three questions, each answered by a rule that test users have no say in:

- *auto* against the best of the paper's four strategies. Which one is best is decided on validation
  users: the best of four by test score owes part of its score to luck, and nobody could have chosen
  it.
- *the ceiling*: how far auto and that best one are from the full softmax, where it was trained.
- *the drift rule* against the best fixed bank size: see `drift_rule`.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from crossbatch.errors import DataError
from crossbatch.reports import formatting
from crossbatch.reports.comparison import Gains
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reproduce import drift_rule
from crossbatch.reproduce.folder import TITLES, GridFolder
from crossbatch.reproduce.groups import (
    best_of,
    gain_cell,
    gain_numbers,
    groups_of,
    model_cell,
    percent_cell,
    shared_seeds,
    with_seeds,
)
from crossbatch.reproduce.sheet import Sheet, write_sheet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crossbatch.reports.runs import Run
    from crossbatch.reproduce.groups import Group

RIVALS = ("uniform", "in_batch", "mixed", "cross_batch")
METRICS = ("recall@50", "ndcg@50")
VERDICTS = {"better": "better", "worse": "**worse**", "unclear": "level"}
NOTE = (
    "The best of the four by hand is the one with the highest mean validation {metric} over the "
    "seeds it shares with auto. Gains are relative, on test users, with a 95 % paired bootstrap "
    "interval over users and seeds; the verdict is on {metric}: *level* where the interval holds "
    "zero. CPU is the processor time of auto's steps over that of in-batch, as far as runs at "
    "different times can tell; *promised* is what auto measured before it began."
)


def write_bar(folder: GridFolder) -> list[Path]:
    """Write the judgement on every model that has runs for it."""
    runs = [run for run in folder.runs() if run.finished]
    groups, gains = groups_of(runs), Gains(runs, METRICS)
    models = list(dict.fromkeys(group.model for group in groups))
    judged = [row for model in models if (row := judge(model, groups, gains))]
    limited = [
        row
        for model, rule in product(models, drift_rule.RULES)
        if (row := drift_rule.judge_drift(model, rule, groups, gains))
    ]
    if not judged and not limited:
        raise DataError(
            f"{folder.path / 'runs'} holds no run of auto or of a drift rule beside its rivals; "
            "train some with --data and --samplers"
        )
    parts = []
    if judged:
        parts += [_table(judged), NOTE.format(metric=judged[0]["metric"]), summary(judged)]
    ceilings = [row for row in judged if row["ceiling"]]
    if ceilings:
        parts += ["## The ceiling", _ceiling_table(ceilings)]
    if limited:
        parts += ["## The drift rule", drift_rule.drift_table(limited), drift_rule.NOTE]
    rows = [*judged, *limited]
    return write_sheet(folder, Sheet("bar", "The bar", parts, rows))


def judge(model: str, groups: Sequence[Group], gains: Gains) -> dict[str, Any] | None:
    """Auto against the best of four; None without runs of both."""
    mine = {g.strategy: g for g in groups if g.model == model and g.capacity is None}
    auto = mine.get("auto")
    if auto is None:
        return None
    metric = str(auto.runs[0].config.get("train", {}).get("metric", METRICS[0]))
    rivals = [mine[name] for name in RIVALS if name in mine]
    seeds = shared_seeds([auto, *rivals])
    best = best_of(rivals, metric, "valid", seeds)
    if best is None:
        return None
    lucky = best_of(rivals, metric, "test", seeds)
    found = gains.over(with_seeds(best, seeds), with_seeds(auto, seeds))
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
        "gains": {key: gain_numbers(found.get(key)) for key in METRICS},
        "verdict": formatting.verdict(found.get(metric)) or "unclear",
        "cpu": _ratio(auto.cpu(), mine["in_batch"].cpu() if "in_batch" in mine else None),
        "promised": _promised(auto.runs),
        "ceiling": {}
        if full is None
        else {
            "seeds": sorted(run.seed for run in full.runs if run.seed is not None),
            "auto": gain_numbers(gains.over(full.variant, auto.variant).get(metric)),
            "best": gain_numbers(gains.over(full.variant, best.variant).get(metric)),
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
        if cached := sampler.get("capacity", 0):
            added += facts.get("any_cached_us", 0.0) + cached * facts["cached_column_us"]
        if advice.get("loss", {}).get("mask_later"):
            added += facts.get("masking_us", 0.0)
        ratios.append(1 + added / (1e3 * facts["in_batch_ms"]))
    return max(ratios, default=None)


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None


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
            f"{percent_cell(test['auto'][key])} / {percent_cell(test[row['best']][key])}"
            for key in METRICS
        ]
        lines.append(
            [
                model_cell(row["model"]),
                literal(", ".join(row["chosen"])),
                literal(TITLES[row["best"]]),
                str(len(row["seeds"])),
                *pairs,
                *(gain_cell(row["gains"][key]) for key in METRICS),
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
            model_cell(row["model"]),
            str(len(row["ceiling"]["seeds"])),
            percent_cell(row["ceiling"]["test"].get(metric)),
            gain_cell(row["ceiling"]["auto"]),
            gain_cell(row["ceiling"]["best"]),
        ]
        for row in judged
    ]
    return pipe_table([literal(head) for head in heads], lines, words=1)
