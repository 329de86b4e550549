"""The audit: which licences pass, that all extras are covered, and that gaps do not pass."""

from __future__ import annotations

import importlib.util
import json
import subprocess
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


audit = load("audit")


@pytest.mark.parametrize(
    ("licence", "acceptable"),
    [
        ("MIT", True),
        ("BSD License", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("BSD-3-Clause AND MIT", True),
        ("Apache Software License; BSD License", True),
        ("GPL-3.0-only", False),
        ("LGPL-3.0-only", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("MIT AND LGPL-2.1-or-later", False),
        ("AGPL-3.0 OR Commercial", False),
        ("MIT AND Shareware", False),
        ("UNKNOWN", False),
        ("", False),
    ],
)
def test_licences(licence: str, acceptable: bool) -> None:
    assert audit.is_acceptable(licence) is acceptable
    expected = audit.PASSED if acceptable else audit.FAILED
    assert audit.check_licences({"x": ("1", licence)}) == expected


def test_a_reviewed_package_has_no_file_of_the_refused_licence() -> None:
    (name,) = audit.REVIEWED
    assert audit.check_licences({name: ("1", "GPL")}) == audit.PASSED
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    assert not [file for file in installed.files or () if file.suffix == ".el"]


def test_every_extra_is_covered() -> None:
    names = {each.name for each in audit.declared_requirements(audit.PROJECT)}
    assert {"torch", "numba", "fastapi", "onnx", "pg8000", "pyspark"} <= names
    assert "crossbatch" not in names


def test_a_package_that_is_not_installed_was_not_checked() -> None:
    needed = audit.declared_requirements(audit.PROJECT)
    installed = {audit.canonicalize_name(each.name) for each in needed}
    audit.check_complete(installed, needed)
    with pytest.raises(audit.NotCheckedError, match="pyspark is not installed"):
        audit.check_complete(installed - {"pyspark"}, needed)


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
def test_vulnerabilities(entries: list[Any], code: int) -> None:
    assert audit.judge_vulnerabilities({"dependencies": entries}, {"a", "b"}) == code


@pytest.mark.parametrize(
    ("code", "printed", "passes"),
    [(0, "[]", True), (1, "{}", True), (1, "", False), (2, "", False)],
)
def test_a_tool_without_an_answer_is_not_a_pass(
    monkeypatch: pytest.MonkeyPatch, code: int, printed: str, passes: bool
) -> None:
    done = subprocess.CompletedProcess([], code, stdout=printed, stderr="no network")
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: done)
    if passes:
        assert audit.run_tool("tool") == printed
        return
    with pytest.raises(audit.NotCheckedError, match="no network"):
        audit.run_tool("tool")


def test_the_whole_audit_fails_on_a_refused_licence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {each.name for each in audit.declared_requirements(audit.PROJECT)}
    listed = [{"Name": name, "Version": "1", "License": "MIT"} for name in names | {"crossbatch"}]
    listed.append({"Name": "linked", "Version": "2", "License": "LGPL-3.0-only\nfull text"})
    monkeypatch.setattr(audit, "run_tool", lambda *_, **__: json.dumps(listed))
    monkeypatch.setattr(sys, "argv", ["audit.py", "python", "--no-vulnerabilities"])
    assert audit.main() == audit.FAILED
    assert capsys.readouterr().err == "licence not acceptable: linked 2: LGPL-3.0-only\n"
