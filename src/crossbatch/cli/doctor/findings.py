"""`Finding`: the result of one check of `crossbatch doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    check: str  # what was checked, in a word or two
    level: Literal["ok", "note", "problem"]  # a note works, but is worth knowing
    message: str  # what was found
    remedy: str = ""  # what to do; every problem has one


def ok(check: str, message: str) -> Finding:
    """Return a finding without fault."""
    return Finding(check, "ok", message)


def note(check: str, message: str, remedy: str = "") -> Finding:
    """Return a finding that limits some use."""
    return Finding(check, "note", message, remedy)


def problem(check: str, message: str, remedy: str) -> Finding:
    """Return a finding that something is broken."""
    assert remedy, "a problem needs a remedy"
    return Finding(check, "problem", message, remedy)
