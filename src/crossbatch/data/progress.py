"""Progress of long work, reported through one callable."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""`progress(stage, done, total)`: total is None where the end is not known in advance."""


def silent(stage: str, done: int, total: int | None) -> None:
    """Report nothing; the default."""
