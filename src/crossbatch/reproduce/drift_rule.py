"""Is a bank that is read as far as it is fresh as good as the best fixed size?

The rules (`DRIFT_RULES` in `design`) were fixed before their runs. The best fixed size is chosen on
validation users; the best one by test score stands beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crossbatch.reports.formatting import metric_name
from crossbatch.reports.markdown import literal, pipe_table
from crossbatch.reproduce.groups import (
    best_of,
    gain_cell,
    gain_numbers,
    model_cell,
    percent_cell,
    shared_seeds,
    with_seeds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crossbatch.reports.comparison import Gains
    from crossbatch.reproduce.groups import Group

METRIC, CLOSE = "ndcg@50", 0.01
RULES = {"drift_limited": "79 B", "safe_bank": "16 B", "sized_bank": "79 B, no repeats"}
NOTE = (
    "Rules fixed before their runs: a balanced bank of 79 or of 16 batches without warm-up, read "
    "as far as its rows are on average at most 0.1 of their length away from where they would be "
    "now; and, *no repeats*, at most 1/Σq² of them. Fixed sizes are those of the same strategy; 0 "
    "is in-batch. *Within* asks for at most 1 % below the size that validation users would have "
    "chosen."
)


def judge_drift(
    model: str, rule: str, groups: Sequence[Group], gains: Gains
) -> dict[str, Any] | None:
    """A drift rule against fixed sizes of the same bank; size 0 is in-batch."""
    mine = [group for group in groups if group.model == model]
    limited = next((group for group in mine if group.strategy == rule), None)
    fixed = [group for group in mine if group.strategy in ("in_batch", "balanced")]
    if limited is None or not any(group.strategy == "balanced" for group in fixed):
        return None
    seeds = shared_seeds([limited, *fixed])
    best = best_of(fixed, METRIC, "valid", seeds)
    lucky = best_of(fixed, METRIC, "test", seeds)
    if best is None or lucky is None:
        return None
    found = gains.over(with_seeds(best, seeds), with_seeds(limited, seeds)).get(METRIC)
    beside = gains.over(with_seeds(lucky, seeds), with_seeds(limited, seeds)).get(METRIC)
    return {
        "judged": rule,
        "model": model,
        "metric": METRIC,
        "seeds": sorted(seed for seed in seeds if seed is not None),
        "sizes": sorted(_size(group) for group in fixed),
        "best": _size(best),
        "best_on_test": _size(lucky),
        "test": {
            "rule": limited.mean(METRIC, "test", seeds),
            "best": best.mean(METRIC, "test", seeds),
            "best_on_test": lucky.mean(METRIC, "test", seeds),
        },
        "gains": {"best": gain_numbers(found), "best_on_test": gain_numbers(beside)},
        "within": found is not None and found.relative >= -CLOSE,
    }


def drift_table(limited: Sequence[Mapping[str, Any]]) -> str:
    """A line for each model."""
    name = metric_name(METRIC)
    heads = ["Model", "Rule", "Seeds", "Best fixed M", f"{name} at it", f"{name} by the rule"]
    heads += ["Gain", "Within 1 %", "Best M on test", "Gain over that"]
    lines = [
        [
            model_cell(row["model"]),
            RULES[row["judged"]],
            str(len(row["seeds"])),
            str(row["best"]),
            percent_cell(row["test"]["best"]),
            percent_cell(row["test"]["rule"]),
            gain_cell(row["gains"]["best"]),
            "yes" if row["within"] else "**no**",
            str(row["best_on_test"]),
            gain_cell(row["gains"]["best_on_test"]),
        ]
        for row in limited
    ]
    return pipe_table([literal(head) for head in heads], lines, words=1)


def _size(group: Group) -> int:
    """Rows of the bank."""
    return int(group.runs[0].config.get("sampler", {}).get("capacity", 0))
