"""Installed packages against the versions that this release supports, as its metadata says."""

from __future__ import annotations

import platform
import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import TYPE_CHECKING, NamedTuple

from crossbatch.health.finding import Finding, note, ok, problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[.*?\])?\s*(?P<range>[^;]*)(?:;(?P<marker>.*))?")
EXTRA = re.compile(r"extra\s*==\s*['\"](?P<extra>\w+)['\"]")
BOUND = re.compile(r"(?P<sign>>=|<=|==|<|>)\s*(?P<version>[\d.]+)")
# Only whoever works on crossbatch itself wants these.
DEVELOPMENT = frozenset({"dev", "docs", "e2e"})
# Compiled packages that may be installed and yet not load; imported to be sure.
COMPILED = {"torch": "torch", "numpy": "numpy", "polars": "polars", "safetensors": "safetensors"}
ACCELERATORS = {"numba": "numba", "faiss-cpu": "faiss"}


class Requirement(NamedTuple):
    """A package that crossbatch wants.

    Attributes:
        name: Of the package.
        bounds: Such as ">=2.10,<3".
        extra: The extra that wants it; empty for crossbatch itself.
    """

    name: str
    bounds: str
    extra: str


def requirements() -> list[Requirement]:
    """What the installed crossbatch says that it needs here."""
    found = []
    for text in requires("crossbatch") or []:
        match = REQUIREMENT.match(text)
        assert match is not None, text
        marker = match["marker"] or ""
        if "win32" in marker and sys.platform == "win32":
            continue
        extra = EXTRA.search(marker)
        name = extra["extra"] if extra else ""
        found.append(Requirement(match["name"], match["range"].strip(), name))
    return found


def within(installed: str, bounds: str) -> bool:
    """Whether a version lies in a range such as ">=2.10,<3"."""
    mine = _release(installed)
    for bound in BOUND.finditer(bounds):
        theirs = _release(bound["version"])
        length = max(len(mine), len(theirs))
        left, right = (part + (0,) * (length - len(part)) for part in (mine, theirs))
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            "==": left == right,
            ">": left > right,
            "<": left < right,
        }
        if not holds[bound["sign"]]:
            return False
    return True


def required(_: Path) -> Iterator[Finding]:
    """Python, crossbatch and the packages that it cannot do without."""
    python, wanted = platform.python_version(), metadata("crossbatch")["Requires-Python"]
    if within(python, wanted):
        yield ok("python", f"{python} (supported: {wanted})")
    else:
        yield problem("python", f"{python} is not {wanted}", f"use Python {wanted}")
    yield ok("crossbatch", version("crossbatch"))
    for requirement in requirements():
        if not requirement.extra:
            yield _package(requirement, "crossbatch")


def extras(_: Path) -> Iterator[Finding]:
    """What each extra adds, and whether it is here."""
    wanted: dict[str, list[Requirement]] = {}
    for requirement in requirements():
        if requirement.extra and requirement.extra not in DEVELOPMENT:
            wanted.setdefault(requirement.extra, []).append(requirement)
    for extra, members in wanted.items():
        check, remedy = f"extra {extra}", f"pip install 'crossbatch[{extra}]'"
        missing = [member.name for member in members if _installed(member.name) is None]
        if missing:
            yield note(check, f"not installed: {', '.join(missing)}", remedy)
            continue
        found = [_package(member, f"crossbatch[{extra}]") for member in members]
        troubles = [finding for finding in found if finding.remedy]
        yield from troubles
        if not troubles:
            yield ok(check, ", ".join(f"{m.name} {_installed(m.name)}" for m in members))


def _package(requirement: Requirement, target: str) -> Finding:
    """Whether a package is there, in range, and loads."""
    name, bounds, _ = requirement
    remedy = f"pip install '{target}'"
    installed = _installed(name)
    if installed is None:
        return problem(name, "is not installed", remedy)
    if not within(installed, bounds):
        return problem(name, f"{installed} is not {bounds}", f"pip install '{name}{bounds}'")
    module = (COMPILED | ACCELERATORS).get(name)
    if module is not None:
        try:
            import_module(module)
        except Exception as error:  # a broken build may raise anything
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            again = f"pip install --force-reinstall '{name}=={installed}'"
            return problem(name, f"{installed} does not load: {why}", again)
    return ok(name, f"{installed} (supported: {bounds or 'any'})")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _release(text: str) -> tuple[int, ...]:
    """The leading numbers: "2.13.0+cpu" is (2, 13, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
