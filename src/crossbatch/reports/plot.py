"""What a chart shows, as plain numbers: SVG and matplotlib draw the same `Plot`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.reports.journal import Curve


@dataclass(frozen=True, slots=True)
class Line:
    """One line; lines of one configuration share label and color, their notes differ."""

    label: str
    note: str
    curve: Curve
    color: int
    best: int | None = None  # index of the point to mark
    intervals: Sequence[tuple[float, float]] = ()  # a whisker per point, or none


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at a place worth knowing."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """One chart: what is on the axes, and its lines. Logarithmic axes need positive numbers."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    note: str = ""
    marks: Sequence[Mark] = ()
    log_x: bool = False
    log_y: bool = False
