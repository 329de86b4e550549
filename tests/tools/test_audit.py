"""The audit: licences as metadata give them, a bill of materials, and no pass without a look."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

pytest.importorskip("packaging")
TOOLS = Path(__file__).parents[2] / "tools"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


inventory, audit = load("inventory"), load("audit")


def test_the_core_needs_what_pyproject_says_and_what_that_needs() -> None:
    names = {part.name for part in inventory.needed("crossbatch")}
    assert {"torch", "numpy", "polars", "safetensors", "typer", "rich"} <= names
    assert "sympy" in names  # through torch
    assert not {"fastapi", "pytest", "matplotlib", "crossbatch"} & names


def test_extras_add_theirs() -> None:
    core = {part.name for part in inventory.needed("crossbatch")}
    served = {part.name for part in inventory.needed("crossbatch", ("serve",))}
    assert {"fastapi", "uvicorn", "starlette"} <= served - core


def test_every_version_and_licence_is_the_installed_one() -> None:
    for part in inventory.needed("crossbatch"):
        assert part.version == distribution(part.name).version
        assert part.licence != inventory.UNKNOWN, part


def test_bug_the_audit_could_never_pass() -> None:
    """What was looked into holds no file of the licence that its metadata name."""
    (name,) = inventory.LOOKED_INTO
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    assert not [file for file in installed.files or () if file.suffix == ".el"]
    extras = inventory.installed_extras("crossbatch")
    doubtful = [part for part in inventory.needed("crossbatch", extras) if not part.acceptable]
    assert not doubtful


def test_something_that_is_not_installed_is_an_error_not_an_omission() -> None:
    with pytest.raises(PackageNotFoundError):
        inventory.needed("no-such-distribution")


@pytest.mark.parametrize(
    ("licence", "acceptable"),
    [
        ("MIT", True),
        ("BSD License", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("BSD-3-Clause AND MIT", True),
        ("GPL-3.0-only", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("AGPL-3.0 OR Commercial", False),
        ("unknown", False),
        ("Permitted by nobody", False),
    ],
)
def test_licences(licence: str, acceptable: bool) -> None:
    assert inventory.Part("x", "1", licence, ()).acceptable is acceptable


def test_the_bill_of_materials_names_every_part_and_what_it_needs(tmp_path: Path) -> None:
    parts = inventory.needed("crossbatch")
    inventory.write_sbom(tmp_path / "sbom.json", "crossbatch", parts)
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "crossbatch")
    assert {part["purl"] for part in bill["components"]} == {part.purl for part in parts}
    torch = next(entry for entry in bill["dependencies"] if "/torch@" in entry["ref"])
    assert any("/sympy@" in ref for ref in torch["dependsOn"])


def entry(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "version": "1", "vulns": []} | more


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([entry("a"), entry("b")], 0),
        ([entry("a"), entry("b", vulns=[{"id": "CVE-1"}])], 1),
        ([entry("a")], 2),
        ([entry("a"), {"name": "b", "skip_reason": "could not be audited"}], 2),
        ([], 2),
    ],
)
def test_an_audit_that_could_not_look_does_not_pass(entries: list[Any], code: int) -> None:
    assert audit.judge({"dependencies": entries}, {"a", "b"}) == code
