"""The table of checks: `crossbatch doctor` is this table, printed.

examine({"environment": Path.cwd(), "data": Path("shop")})

A new check is a function of a path that yields findings, and one line here. Checks import what
they need themselves: a package that is missing or broken is a finding, not a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.health import bundle, dataset, machine, packages, run
from crossbatch.health.finding import Finding, problem
from crossbatch.health.leftovers import beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    Check = Callable[[Path], Iterable[Finding]]

# What can be examined, and the checks of it in order; each gets the folder in question.
CHECKS: Mapping[str, tuple[Check, ...]] = {
    "environment": (
        packages.required,
        packages.extras,
        machine.processors,
        machine.memory,
        machine.gpu,
        machine.disk,
    ),
    "data": (dataset.files, dataset.negatives, machine.disk, beside),
    "run": (
        run.in_training,
        run.state,
        run.files,
        run.best,
        run.checkpoints,
        run.journal,
        run.data,
        run.leftovers,
        machine.disk,
    ),
    "bundle": (bundle.files, beside),
}


def examine(subjects: Mapping[str, Path]) -> dict[str, list[Finding]]:
    """Run every check of each subject.

    Args:
        subjects: Folders by a key of `CHECKS`; "environment" wants the working folder.

    Returns:
        Findings by subject, in the order of the table.
    """
    return {
        subject: [finding for check in CHECKS[subject] for finding in _run(check, path)]
        for subject, path in subjects.items()
    }


def _run(check: Check, path: Path) -> Iterator[Finding]:
    try:
        yield from check(path)
    except ImportError as error:
        remedy = "mend the packages that are reported above"
        yield problem(check.__name__, f"cannot be looked at: {error}", remedy)
