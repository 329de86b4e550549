"""Audit everything that crossbatch and its extras install: licences, bill of materials, CVEs.

    python tools/audit.py .venv-audit/bin/python --sbom build/sbom.cdx.json

The audited environment is another one than that of the tools (pip-licenses, cyclonedx-bom,
pip-audit); `make audit` makes both. The audit fails if a licence is unknown or not acceptable, if a
vulnerability is known, and if something could not be checked.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
PASSED, FAILED, NOT_CHECKED = 0, 1, 2
# Licences that can be used with MIT-licensed code without further conditions.
ALLOWED = re.compile(
    r"\b(MIT|MIT-0|MIT-CMU|BSD|BSD-2-Clause|BSD-3-Clause|0BSD|Apache|Apache-2\.0|ISC|ISCL|PSF|"
    r"PSF-2\.0|Python Software Foundation|Python-2\.0|MPL|MPL-2\.0|Mozilla|Zlib|HPND|Unlicense|"
    r"CC0-1\.0|Public Domain|CNRI-Python|BSL-1\.0|NVIDIA)\b",
    re.IGNORECASE,
)
REFUSED = re.compile(r"\b([AL]?GPL|GNU|SSPL|Proprietary|Commons Clause)", re.IGNORECASE)
JOINED = re.compile(r"\s+(?:AND|OR)\s+|[;,]")
# Packages whose metadata name a licence of files that their wheel does not contain.
REVIEWED = {"docutils": "BSD and public domain; only an Emacs mode outside the wheel is GPL"}


class NotCheckedError(Exception):
    """A tool gave no answer, or the environment is incomplete."""


def main() -> int:
    """Run the three checks and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", type=Path, help="interpreter of the environment to audit")
    parser.add_argument("--sbom", type=Path, help="also write a CycloneDX bill of materials")
    parser.add_argument("--no-vulnerabilities", action="store_true", help="leave that check out")
    arguments = parser.parse_args()
    try:
        packages = installed_packages(arguments.python)
        check_complete(packages, declared_requirements(PROJECT))
        codes = [check_licences(packages)]
        if arguments.sbom:
            write_sbom(arguments.python, arguments.sbom)
        if not arguments.no_vulnerabilities:
            codes.append(check_vulnerabilities(packages))
    except NotCheckedError as error:
        sys.stderr.write(f"{error}\n")
        return NOT_CHECKED
    return max(codes)


def installed_packages(python: Path) -> dict[str, tuple[str, str]]:
    """Return version and licence of every package of an environment, by canonical name."""
    listed = run_tool("piplicenses", "--python", str(python), "--with-system", "--format", "json")
    return {
        canonicalize_name(entry["Name"]): (entry["Version"], entry["License"].split("\n")[0])
        for entry in json.loads(listed)
        if canonicalize_name(entry["Name"]) != "crossbatch"
    }


def declared_requirements(project: Path) -> list[Requirement]:
    """Return the requirements of the project and of all of its extras."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    groups = [table["dependencies"], *table["optional-dependencies"].values()]
    found = [Requirement(line) for lines in groups for line in lines]
    return [each for each in found if each.name != table["name"]]  # `all` names the other extras


def check_complete(packages: Iterable[str], requirements: Iterable[Requirement]) -> None:
    """Raise `NotCheckedError` unless every requirement for this platform is installed."""
    installed = set(packages)
    for each in requirements:
        if each.marker and not each.marker.evaluate():
            continue
        if canonicalize_name(each.name) not in installed:
            raise NotCheckedError(f"{each.name} is not installed, so it cannot be audited")


def check_licences(packages: Mapping[str, tuple[str, str]]) -> int:
    """Print every package and complain about licences that are unknown or not acceptable."""
    doubtful = []
    for name, (version, licence) in sorted(packages.items()):
        sys.stdout.write(f"{name:32} {version:18} {licence}\n")
        if name not in REVIEWED and not is_acceptable(licence):
            doubtful.append(f"licence not acceptable: {name} {version}: {licence}\n")
    sys.stdout.write(f"{len(packages)} packages with all extras, {len(doubtful)} doubtful\n")
    sys.stderr.writelines(doubtful)
    return FAILED if doubtful else PASSED


def is_acceptable(licence: str) -> bool:
    """Whether every licence that is named is allowed, alternatives included."""
    parts = JOINED.split(licence)
    return all(ALLOWED.search(part) and not REFUSED.search(part) for part in parts)


def write_sbom(python: Path, path: Path) -> None:
    """Write a CycloneDX bill of materials of an environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    run_tool(
        *("cyclonedx_py", "environment", str(python), "--pyproject", str(PROJECT)),
        *("--mc-type", "library", "--output-format", "JSON", "--output-file", str(path)),
    )
    sys.stdout.write(f"bill of materials written to {path}\n")


def check_vulnerabilities(packages: Mapping[str, tuple[str, str]]) -> int:
    """Ask pip-audit about exactly these versions."""
    pins = "".join(f"{name}=={v.partition('+')[0]}\n" for name, (v, _) in packages.items())
    report = run_tool(
        *("pip_audit", "--no-deps", "--disable-pip", "--format", "json"),
        *("--requirement", "/dev/stdin"),
        text=pins,
    )
    return judge_vulnerabilities(json.loads(report), packages)


def judge_vulnerabilities(report: Mapping[str, Any], expected: Iterable[str]) -> int:
    """Return the exit code for pip-audit's report; a package that it skipped was not checked."""
    entries = {canonicalize_name(entry["name"]): entry for entry in report["dependencies"]}
    skipped = sorted(n for n in expected if n not in entries or "skip_reason" in entries[n])
    if skipped:
        reason = entries.get(skipped[0], {}).get("skip_reason", "not in pip-audit's report")
        names = ", ".join(skipped)
        sys.stderr.write(f"{len(skipped)} packages not looked up ({reason}): {names}\n")
    vulnerable = {n: entry["vulns"] for n, entry in entries.items() if entry.get("vulns")}
    for name, found in sorted(vulnerable.items()):
        ids = ", ".join(entry["id"] for entry in found)
        sys.stderr.write(f"{name} {entries[name]['version']} has known vulnerabilities: {ids}\n")
    if vulnerable:
        return FAILED
    return NOT_CHECKED if skipped else PASSED


def run_tool(module: str, *arguments: str, text: str = "") -> str:
    """Run a module of this environment and return what it printed.

    Raises:
        NotCheckedError: If it printed nothing; pip-audit ends with 1 after a finding.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True)  # noqa: S603
    if done.returncode not in (0, 1) or not (done.stdout.strip() or done.returncode == 0):
        reason = (done.stderr.strip() or "no answer").splitlines()[-1]
        raise NotCheckedError(f"{module} could not check the packages: {reason}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
