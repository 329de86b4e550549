"""Audit what the project depends on: licences, a bill of materials, known vulnerabilities.

    python tools/audit.py --sbom sbom.cdx.json

Fails when a licence is unknown or not acceptable, when a vulnerability is known, and when it could
not find out: an audit that could not look is no audit. `--no-vulnerabilities` leaves that part out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from inventory import Part, installed_extras, needed, write_sbom

ROOT = "crossbatch"
FINE, FOUND, COULD_NOT_LOOK = 0, 1, 2


def main() -> int:
    """Print the list, write the bill, say what is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sbom", type=Path, help="also write a CycloneDX file")
    parser.add_argument("--no-vulnerabilities", action="store_true")
    arguments = parser.parse_args()
    core = needed(ROOT)
    parts = needed(ROOT, installed_extras(ROOT))
    _print(parts, {part.name for part in core})
    if arguments.sbom:
        write_sbom(arguments.sbom, ROOT, parts)
    codes = [_licences(parts)]
    if not arguments.no_vulnerabilities:
        codes.append(_vulnerabilities(parts))
    return max(codes)


def _print(parts: list[Part], core: set[str]) -> None:
    for part in parts:
        extra = "" if part.name in core else "extra"
        sys.stdout.write(f"{part.name:32} {part.version:16} {extra:6} {part.licence}\n")
    sys.stdout.write(f"{len(core)} distributions for the core, {len(parts)} with all extras here\n")


def _licences(parts: list[Part]) -> int:
    doubtful = [part for part in parts if not part.acceptable]
    for part in doubtful:
        sys.stderr.write(f"licence to look into: {part.name} {part.version}: {part.licence}\n")
    return FOUND if doubtful else FINE


def _vulnerabilities(parts: list[Part]) -> int:
    """Ask pip-audit about exactly these versions; every one must have been looked up."""
    pins = "".join(f"{part.name}=={part.version.partition('+')[0]}\n" for part in parts)
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run(  # noqa: S603 (our own arguments)
        [*command, "--requirement", "/dev/stdin"], input=pins, capture_output=True, text=True
    )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        reason = (done.stderr.strip() or "no answer").splitlines()[-1]
        sys.stderr.write(f"could not look for vulnerabilities: {reason}\n")
        return COULD_NOT_LOOK
    return judge(report, {part.name for part in parts})


def judge(report: dict[str, Any], expected: set[str]) -> int:
    """What pip-audit's report means; a package that it skipped was not looked up."""
    entries = {entry["name"].lower().replace("_", "-"): entry for entry in report["dependencies"]}
    skipped = [n for n in expected if n not in entries or "skip_reason" in entries[n]]
    for name in sorted(skipped):
        sys.stderr.write(f"could not look up {name}\n")
    vulnerable = {n: entry["vulns"] for n, entry in entries.items() if entry.get("vulns")}
    for name, found in sorted(vulnerable.items()):
        ids = ", ".join(entry["id"] for entry in found)
        sys.stderr.write(f"{name} {entries[name]['version']} has known vulnerabilities: {ids}\n")
    if vulnerable:
        return FOUND
    return COULD_NOT_LOOK if skipped else FINE


if __name__ == "__main__":
    sys.exit(main())
