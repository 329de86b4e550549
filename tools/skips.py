"""List the tests that no environment ran, with their reasons; fail if one is not expected.

    python tools/skips.py build/tests/*.xml

The arguments are pytest's reports (`--junitxml`), one of each environment. A test that is skipped
in one environment and runs in another counts as run. `tests/allowed_skips.toml` lists the tests
that may be skipped and what is needed to run them: a new one must be added there, or made to run.
"""

from __future__ import annotations

import re
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree  # the reports are our own

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ALLOWED = Path(__file__).parents[1] / "tests" / "allowed_skips.toml"
NOT_RUN = "not run"  # property of a documentation test: a code block that cannot run, and why


def skipped(reports: Iterable[Path]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the reasons of the tests that were skipped everywhere, and of code blocks."""
    reasons: dict[str, str] = {}
    blocks: dict[str, str] = {}
    ran: set[str] = set()
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314
            name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
            found = case.find("skipped")
            if found is None:
                ran |= {name, str(case.get("classname"))}  # a module is skipped by its own name
            else:
                reasons[name] = _reason(found)
            for each in case.iter("property"):
                if each.get("name") == NOT_RUN:
                    block, _, reason = str(each.get("value")).partition(": ")
                    blocks[block] = reason
    return {name: why for name, why in reasons.items() if name not in ran}, blocks


def _reason(found: ElementTree.Element) -> str:
    """What the test said; of a whole module pytest writes it into the text."""
    message = found.get("message") or ""
    if message == "collection skipped":
        match = re.search(r"'Skipped: (.*)'\)", found.text or "")
        message = match[1] if match else message
    return message.removeprefix("Skipped: ")


def unexpected(names: Iterable[str], allowed: Mapping[str, str]) -> list[str]:
    """Return the skipped tests that no pattern of the list allows."""
    return [name for name in names if not any(fnmatchcase(name, each) for each in allowed)]


def table(reasons: Mapping[str, str]) -> str:
    """One line for each file and reason, with the number of tests."""
    counts: dict[tuple[str, str], int] = {}
    for name, reason in reasons.items():
        key = (name.split("::")[0], reason)
        counts[key] = counts.get(key, 0) + 1
    width = max((len(where) for where, _ in counts), default=0)
    lines = [f"{n:5}  {where:{width}}  {reason}" for (where, reason), n in sorted(counts.items())]
    return "\n".join(lines)


def main(reports: list[str]) -> int:
    """Print the table and return the exit code."""
    if not reports:
        sys.stderr.write("skips.py: name pytest's reports, such as build/tests/*.xml\n")
        return 2
    reasons, blocks = skipped(map(Path, reports))
    allowed: dict[str, str] = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))
    if blocks:
        sys.stdout.write(f"\n{len(blocks)} code blocks of the documentation are not run:\n")
        width = max(map(len, blocks))
        sys.stdout.writelines(f"       {name:{width}}  {why}\n" for name, why in blocks.items())
    sys.stdout.write(f"\n{len(reasons)} tests were skipped in every environment:\n")
    sys.stdout.write(f"{table(reasons)}\n" if reasons else "")
    remedies = {
        needs for name in reasons for each, needs in allowed.items() if fnmatchcase(name, each)
    }
    sys.stdout.writelines(f"  to run them: {needs}\n" for needs in sorted(remedies))
    surprises = unexpected(reasons, allowed)
    for name in surprises:
        sys.stderr.write(
            f"{name} is skipped ({reasons[name]}): make it run, or add it to {ALLOWED.name}\n"
        )
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
