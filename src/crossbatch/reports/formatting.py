"""How metrics and numbers are printed, the same in HTML, Markdown and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossbatch.reports.comparison import Estimate, Gain, Row

NOTHING = "–"
MINUS = "−"
# In the order of the paper's Table 1, our textbook NDCG beside the paper's.
METRIC_NAMES = {
    "recall": "Recall",
    "ndcg_comirec": "NDCG (paper)",
    "ndcg": "NDCG",
    "unseen_recall": "Recall (unseen)",
    "unseen_ndcg": "NDCG (unseen)",
    "hit_rate": "Hit rate",
    "unseen_hit_rate": "Hit rate (unseen)",
    "precision": "Precision",
    "mrr": "MRR",
    "map": "MAP",
    "novelty": "Novelty",
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


def metric_name(key: str) -> str:
    """A metric key in print: "ndcg_comirec@50" is "NDCG@50 (paper)"."""
    kind, _, cutoff = key.partition("@")
    name, _, remark = METRIC_NAMES.get(kind, kind).partition(" (")
    return f"{name}@{cutoff}" + (f" ({remark}" if remark else "") if cutoff else name


def percent(value: Estimate | None) -> str:
    """A fraction as per cent, with its spread over seeds: "12.34 ± 0.05"."""
    if value is None:
        return NOTHING
    spread = "" if value.spread is None else f" ± {100 * value.spread:.2f}"
    return f"{100 * value.mean:.2f}{spread}"


def amount(value: Estimate | None) -> str:
    """Seconds or minutes with their spread, to three figures or so."""
    if value is None:
        return NOTHING
    digits = 2 if value.mean < 10 else 1
    spread = "" if value.spread is None else f" ± {value.spread:.{digits}f}"
    return f"{value.mean:.{digits}f}{spread}"


def signed(value: float) -> str:
    """A relative change in per cent with its sign: "+3.2" or "−1.0"."""
    text = f"{round(100 * value, 1) + 0.0:+.1f}"  # + 0.0 turns −0.0 into 0.0
    return text.replace("-", MINUS)


def gain(value: Gain | None) -> str:
    """A gain with its interval: "+6.9 % [+5.2, +8.6]"."""
    if value is None:
        return NOTHING
    text = f"{signed(value.relative)} %"
    if value.interval is None:
        return text
    low, high = value.interval
    return f"{text} [{signed(low)}, {signed(high)}]"


def seeds(row: Row) -> str:
    """How many seeds finished, of how many: "3" or "2 of 3"; nothing for a baseline."""
    if row.variant is None:
        return NOTHING
    total, finished = len(row.runs), sum(run.finished for run in row.runs)
    return str(total) if finished == total else f"{finished} of {total}"


def verdict(value: Gain | None) -> str:
    """In words that need no colour: "better", "worse" or "unclear"; nothing without interval."""
    if value is None or value.interval is None:
        return ""
    if not value.certain:
        return "unclear"
    return "better" if value.relative > 0 else "worse"


def count(number: int, noun: str) -> str:
    """A number and its noun: "1 run", "3 runs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
