"""`Finding`: the result of one check, how serious it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"  # works, but worth knowing
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Attributes:
        check: What was checked, in a word or two.
        level: How serious it is.
        message: What was found.
        remedy: What to do; every problem has one.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""


def ok(check: str, message: str) -> Finding:
    """Return a finding without fault."""
    return Finding(check, Level.OK, message)


def note(check: str, message: str, remedy: str = "") -> Finding:
    """Return a finding that limits some use."""
    return Finding(check, Level.NOTE, message, remedy)


def problem(check: str, message: str, remedy: str) -> Finding:
    """Return a finding that something is broken."""
    assert remedy, "a problem needs a remedy"
    return Finding(check, Level.PROBLEM, message, remedy)
