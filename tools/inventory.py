"""Which distributions the project needs, under which licences, and as a bill of materials.

    found = needed("crossbatch", extras=("serve",))
    write_sbom(Path("sbom.cdx.json"), "crossbatch", found)

Reads the metadata of what is installed; no network, no package beyond the standard library and
`packaging`, which pip's own metadata rules are written in.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.metadata import Distribution
    from pathlib import Path

UNKNOWN = "unknown"
CLASSIFIER = "License :: "
# What may be used beside MIT-licensed code without further thought, by the words that name it.
ALLOWED = re.compile(
    r"\b(MIT|MIT-0|MIT-CMU|BSD|BSD-2-Clause|BSD-3-Clause|0BSD|Apache|Apache-2\.0|ISC|ISCL|PSF|"
    r"PSF-2\.0|Python Software Foundation|Python-2\.0|MPL|MPL-2\.0|Mozilla|Zlib|HPND|Unlicense|"
    r"CC0-1\.0|Public Domain|CNRI-Python|NVIDIA)\b",
    re.IGNORECASE,
)
# Metadata of a source may name licences of files that are not installed; these were looked into.
LOOKED_INTO = {
    "docutils": "BSD and public domain; under the GPL is an Emacs mode, which no wheel holds",
}
REFUSED = re.compile(r"\b([AL]?GPL|GNU|SSPL|Proprietary|Commons Clause)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """A distribution that the project needs.

    Attributes:
        name: Canonical name.
        version: Installed version.
        licence: As its metadata say.
        needs: Canonical names of what it needs in turn.
    """

    name: str
    version: str
    licence: str
    needs: tuple[str, ...]

    @property
    def purl(self) -> str:
        """Package URL, by which databases of vulnerabilities know it."""
        return f"pkg:pypi/{self.name}@{self.version}"

    @property
    def acceptable(self) -> bool:
        """Whether the licence is known and asks nothing of those who use the project."""
        if self.name in LOOKED_INTO:
            return True
        return bool(ALLOWED.search(self.licence)) and not REFUSED.search(self.licence)


def needed(root: str, extras: Sequence[str] = ()) -> list[Part]:
    """What an installed distribution needs, with all that this needs, by name.

    Raises:
        PackageNotFoundError: If something that is needed is not installed.
    """
    found: dict[str, Part] = {}
    waiting = [(canonicalize_name(root), frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if name in found and not wanted:
            continue
        package = distribution(name)
        requirements = list(_requirements(package, wanted))
        needs = {canonicalize_name(each.name) for each in requirements}
        earlier = found[name].needs if name in found else ()
        if name in found and needs <= set(earlier):
            continue
        found[name] = Part(
            name, package.version, licence_of(package), tuple(sorted(needs | set(earlier)))
        )
        waiting += [(canonicalize_name(r.name), frozenset(r.extras)) for r in requirements]
    del found[canonicalize_name(root)]
    return [found[name] for name in sorted(found)]


def installed_extras(root: str) -> list[str]:
    """The extras of a distribution all of whose packages are installed."""
    package = distribution(root)
    names = package.metadata.get_all("Provides-Extra") or []
    return [name for name in names if _is_installed(_requirements(package, frozenset({name})))]


def licence_of(package: Distribution) -> str:
    """The licence by the newest rule that the metadata follow."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = metadata.get_all("Classifier") or []
    named = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith(CLASSIFIER)]
    if named := [text for text in named if text != "OSI Approved"]:
        return "; ".join(sorted(named))
    text = str(metadata.get("License") or "").strip()
    return text.splitlines()[0][:60] if text else UNKNOWN


def write_sbom(path: Path, root: str, parts: Iterable[Part]) -> None:
    """Write a CycloneDX 1.6 bill of materials as JSON."""
    parts = list(parts)
    itself = Part(root, distribution(root).version, licence_of(distribution(root)), ())
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": {"type": "library", **_component(itself)},
        },
        "components": [{"type": "library", **_component(part)} for part in parts],
        "dependencies": [
            {"ref": part.purl, "dependsOn": [p.purl for p in parts if p.name in part.needs]}
            for part in parts
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _component(part: Part) -> dict[str, Any]:
    return {
        "bom-ref": part.purl,
        "name": part.name,
        "version": part.version,
        "purl": part.purl,
        "licenses": [{"license": {"name": part.licence}}],
    }


def _requirements(package: Distribution, extras: frozenset[str]) -> Iterable[Requirement]:
    """What a distribution requires here, with some of its extras."""
    for text in package.requires or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": name}) for name in (*extras, "")):
            yield requirement


def _is_installed(requirements: Iterable[Requirement]) -> bool:
    try:
        for requirement in requirements:
            distribution(requirement.name)
    except PackageNotFoundError:
        return False
    return True
