"""Temporary files that a killed process left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.health.finding import Finding, note, ok, problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def beside(folder: Path) -> Iterator[Finding]:
    """Half-written or replaced copies of a dataset or bundle, beside it."""
    folder = folder.absolute()
    replaced = folder.parent / f".{folder.name}.aside"
    if replaced.exists() and not folder.exists():
        yield problem(
            "leftovers",
            f"a kill came while {folder.name} was being replaced; the earlier one is {replaced}",
            f"mv {replaced} {folder}",
        )
        return
    partial = sorted(folder.parent.glob(f".{folder.name}.partial-*"))
    yield from temporary([*partial, *([replaced] if replaced.exists() else [])])


def temporary(paths: Iterable[Path]) -> Iterator[Finding]:
    """Say what may be deleted."""
    names = [str(path) for path in paths]
    if names:
        yield note(
            "leftovers",
            f"{len(names)} temporary {'file' if len(names) == 1 else 'files'} of a killed process",
            f"if nothing writes there now: rm -r {' '.join(names)}",
        )
    else:
        yield ok("leftovers", "none")
