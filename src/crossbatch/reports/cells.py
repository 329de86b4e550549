"""How the numbers of a comparison are printed, the same in HTML and Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossbatch.reports.gains import Gain
    from crossbatch.reports.tables import Estimate, Row

NOTHING = "–"
MINUS = "−"


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
