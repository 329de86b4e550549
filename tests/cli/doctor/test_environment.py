"""Installed packages and the machine, as `crossbatch doctor` sees them."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossbatch.cli import doctor
from crossbatch.cli.doctor import environment
from crossbatch.cli.doctor.findings import problem

HERE = Path()


def test_requirements_are_those_of_the_installed_package():
    needed = {each.name: str(each.specifier) for each in environment.requirements()}
    assert needed["torch"] == "<3,>=2.10"
    assert [each.name for each in environment.requirements("ann")] == ["faiss-cpu"]
    assert "fastapi" in {each.name for each in environment.requirements("serve")}
    assert not {"faiss-cpu", "pytest"} & set(needed)


def test_an_old_package_is_a_problem(monkeypatch):
    versions = {"torch": "2.9.1"}
    monkeypatch.setattr(environment, "_installed", lambda name: versions.get(name, "99.0"))
    problems = {
        each.check: each for each in environment.required_packages(HERE) if each.level == "problem"
    }
    assert problems["torch"].message == "2.9.1 is not <3,>=2.10"
    assert problems["torch"].remedy == "pip install 'torch<3,>=2.10'"
    assert "99.0 is not" in problems["numpy"].message


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.14.0.dev20260101", "2.10"])
def test_local_and_development_builds_are_in_range(monkeypatch, version):
    versions = {"torch": version}
    monkeypatch.setattr(environment, "_installed", lambda name: versions.get(name, "99.0"))
    found = {each.check: each for each in environment.required_packages(HERE)}
    assert found["torch"].level == "ok"


def test_a_missing_package_is_a_problem_and_a_missing_extra_a_note(monkeypatch):
    monkeypatch.setattr(environment, "_installed", lambda name: None)
    assert all(
        each.level == "problem"
        for each in environment.required_packages(HERE)
        if each.check not in ("python", "crossbatch")
    )
    extras = list(environment.extras(HERE))
    assert {str(each.level) for each in extras} == {"note"}
    assert "pip install 'crossbatch[ann]'" in {each.remedy for each in extras}
    assert not any("all" in each.check for each in extras)  # the sum of the others


def test_a_package_that_does_not_load_is_a_problem(monkeypatch):
    def broken(name):
        raise ImportError(f"{name}: undefined symbol\nmore")

    monkeypatch.setattr(environment, "import_module", broken)
    found = [each for each in environment.required_packages(HERE) if each.level == "problem"]
    messages = {each.check: each.message for each in found}
    assert set(messages) == set(environment.COMPILED)
    assert messages["torch"].endswith("does not load: torch: undefined symbol")


def test_every_problem_has_a_remedy():
    assert problem("x", "y", "do it").remedy == "do it"
    with pytest.raises(AssertionError):
        problem("x", "y", "")


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 4), ("200000 100000", 2), ("50000 100000", 1), ("nonsense", 4)],
)
def test_a_containers_quota_limits_the_cores(monkeypatch, tmp_path, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert environment.usable_cores(tmp_path / "cpu.max") == cores
    assert environment.usable_cores(tmp_path / "absent") == 4


def test_more_threads_than_cores_are_a_problem(monkeypatch):
    monkeypatch.setattr(environment, "usable_cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert [str(f.level) for f in environment.processors(HERE)] == ["ok", "problem"]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [str(f.level) for f in environment.processors(HERE)] == ["ok"]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("MemTotal: 8 kB\nMemAvailable:    8000000 kB\n", "ok"),
        ("MemAvailable: 100 kB\n", "problem"),
        ("", "note"),
    ],
)
def test_memory_is_read_from_the_systems_table(tmp_path, monkeypatch, text, level):
    monkeypatch.setattr(environment, "MIN_MEMORY", environment.GIB)
    (tmp_path / "meminfo").write_text(text)
    (finding,) = environment.memory(HERE, tmp_path / "meminfo")
    assert finding.level == level


def test_a_full_disk_is_a_problem_even_for_a_folder_to_come(monkeypatch, tmp_path):
    assert [str(f.level) for f in environment.disk(tmp_path / "not" / "yet")] == ["ok"]
    monkeypatch.setattr(environment, "MIN_DISK", environment.GIB)
    full = SimpleNamespace(free=1000)
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda _: full)
    (finding,) = environment.disk(tmp_path / "not" / "yet")
    assert finding.level == "problem"
    assert str(tmp_path) in finding.remedy


def test_a_check_that_cannot_import_is_a_finding_not_a_crash(monkeypatch):
    def needs_torch(_):
        raise ImportError("no torch here")

    monkeypatch.setattr(doctor, "CHECKS", {"environment": (needs_torch,)})
    (finding,) = doctor.examine({"environment": HERE})["environment"]
    assert finding.level == "problem"
    assert "no torch here" in finding.message
