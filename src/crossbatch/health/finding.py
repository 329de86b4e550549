"""`Finding`: what one check saw, how bad it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"  # works, but somebody may want to know
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check saw.

    Attributes:
        check: What was looked at, in a word or two.
        level: How bad it is.
        message: What is the case.
        remedy: What to do; every problem has one.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.remedy or self.level is not Level.PROBLEM, "a problem needs a remedy"


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, message)


def note(check: str, message: str, remedy: str = "") -> Finding:
    """It works, but not as well as it could, or not for everything."""
    return Finding(check, Level.NOTE, message, remedy)


def problem(check: str, message: str, remedy: str) -> Finding:
    """Something is broken."""
    return Finding(check, Level.PROBLEM, message, remedy)
