"""Axes of a chart: where a number stands, which round numbers are printed, and how.

Axis.over([0.03, 0.127], 46, 386)(0.1)      # the pixel of 0.1
ticks(0.03, 0.127)                          # [0.04, 0.06, 0.08, 0.1, 0.12]
short(12_000)                               # "12k"
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Axis:
    """Numbers from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, *, log: bool = False) -> Axis:
        """An axis that holds all values with a small margin."""
        low, high = log_limits(values) if log else limits(values)
        return cls(low, high, start, end, log)

    def from_zero(self) -> Axis:
        """The axis begun at zero where that costs little room."""
        if self.log or not 0 < self.low < self.high / 2:
            return self
        return Axis(0.0, self.high, self.start, self.end)

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = (
            (math.log10(x) for x in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        return self.start + (value - low) * (self.end - self.start) / ((high - low) or 1.0)

    def ticks(self, target: int) -> list[float]:
        """About `target` round numbers."""
        return (log_ticks if self.log else ticks)(self.low, self.high, target)


def limits(values: Iterable[float], *, zero: bool = False) -> tuple[float, float]:
    """The range of an axis: all values and a small margin; with zero where it is near, or `zero`.

    No values, or nothing but zeros, give (0, 1).
    """
    known = list(values)
    if not any(known):
        return 0.0, 1.0
    low, high = min(known), max(known)
    if zero or 0 < low < 0.3 * high:
        low, high = min(low, 0.0), max(high, 0.0)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if low == 0 else low - margin), (high if high == 0 else high + margin)


def ticks(low: float, high: float, target: int = 5) -> list[float]:
    """About `target` round numbers inside [low, high], in order, and at least two."""
    raw = (high - low) / max(target, 1)
    if raw <= 0 or not math.isfinite(raw):
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in ROUND_STEPS if factor * magnitude >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if last - first < 1:  # a single number gives no scale to read
        return ticks(low, high, target + 1)
    # Multiplying instead of adding keeps 0.1 + 0.1 + 0.1 from becoming 0.30000000000000004.
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def log_limits(values: Iterable[float]) -> tuple[float, float]:
    """The range of a logarithmic axis: all positive values and a small margin."""
    known = [value for value in values if value > 0]
    if not known:
        return 0.1, 1.0
    low, high = min(known), max(known)
    margin = max((high / low) ** 0.06, 1.1)
    return low / margin, high * margin


def log_ticks(low: float, high: float, target: int = 5) -> list[float]:
    """About `target` of the numbers 1, 2, 5, 10, 20 and so on inside [low, high].

    A short range has too few of them to read a scale from, and gets the ticks of a linear axis.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for factors in ((1, 2, 5), (1,)):
        candidates = (float(f"{f}e{d}") for d in range(first, last + 1) for f in factors)
        found = [value for value in candidates if low <= value <= high]
        if 2 <= len(found) <= 1.5 * target:
            return found
    if len(found) < 2:
        return ticks(low, high, target)
    return found[:: math.ceil(len(found) / target)]


def short(value: float) -> str:
    """A number on an axis: 12000 is "12k", 0.00012 is "0.00012", 0.0000012 is "1.2e-06"."""
    for size, suffix in SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def exact(value: float) -> str:
    """A number in a tooltip: whole numbers in full with separators, others to five figures."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.5g}"
