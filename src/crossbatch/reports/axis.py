"""`Axis`: where a number stands on paper, linear or logarithmic, and which numbers are printed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossbatch.reports.ticks import limits, log_limits, log_ticks, ticks

if TYPE_CHECKING:
    from collections.abc import Iterable


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
        """An axis that holds all values with a little air."""
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
