"""Read `journal.jsonl`: what a training run wrote down, step by step.

A run may have been killed in the middle of a line and resumed from an older checkpoint, so
unreadable lines are counted instead of raised, and a `resume` at step n takes back whatever was
written after step n before the interruption.

    journal = read_journal(Path("runs/mind/journal.jsonl"))
    steps, recall = journal.curve("eval", "step", "metrics", "recall@50")
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]

CURVE_EVENTS = ("train", "eval", "probe")


@dataclass(frozen=True, slots=True)
class Journal:
    """The events of one run in order, and how many lines could not be read."""

    events: Sequence[Event] = ()
    bad_lines: int = 0

    def of(self, kind: str) -> list[Event]:
        """All events of one kind, such as "start", "train", "eval", "probe", "warning", "stop"."""
        return [event for event in self.events if event["event"] == kind]

    def last(self, kind: str) -> Event | None:
        """The newest event of one kind."""
        found = self.of(kind)
        return found[-1] if found else None

    def curve(self, kind: str, x: str, *path: str) -> Curve:
        """The points (event[x], event[path...]) of one kind of event where both are finite.

        `curve("eval", "step", "metrics", "recall@50")`: x is "step" or "seconds".
        """
        xs, ys = [], []
        for event in self.of(kind):
            here, value = number(event.get(x)), number(follow(event, *path))
            if here is not None and value is not None:
                xs.append(here)
                ys.append(value)
        return Curve(tuple(xs), tuple(ys))

    def keys(self, kind: str, section: str) -> list[str]:
        """Every key that "metrics" or "diagnostics" ever held, first seen first."""
        seen: dict[str, None] = {}
        for event in self.of(kind):
            values = event.get(section)
            if isinstance(values, Mapping):
                seen.update(dict.fromkeys(str(key) for key in values))
        return list(seen)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one line, in the order they were written."""

    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.x)


def read_journal(path: Path) -> Journal:
    """Read a journal; a missing file is an empty journal, a broken line is counted."""
    if not path.is_file():
        return Journal()
    events: list[Event] = []
    bad_lines = 0
    for line in path.read_bytes().splitlines():
        if not line.strip():
            continue
        event = _parse(line)
        if event is None:
            bad_lines += 1
            continue
        if event["event"] == "resume":
            events = _rewind(events, number(event.get("step")))
        events.append(event)
    return Journal(tuple(events), bad_lines)


def number(value: object) -> float | None:
    """A finite number as a float; anything else (text, null, NaN, true) is None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # broken JSON, broken UTF-8, nested beyond reason
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _rewind(events: list[Event], step: float | None) -> list[Event]:
    """Drop the stop that was none, and the points that the resumed run will write again."""
    limit = math.inf if step is None else step
    return [
        event
        for event in events
        if event["event"] != "stop"
        and (event["event"] not in CURVE_EVENTS or (number(event.get("step")) or 0.0) <= limit)
    ]


def follow(value: object, *path: str) -> object:
    """What nested JSON objects hold at the end of a path of keys, or None if they do not."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
