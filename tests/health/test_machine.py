import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossbatch.health import checks, examine, machine

HERE = Path()


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 4), ("200000 100000", 2), ("50000 100000", 1), ("nonsense", 4)],
)
def test_a_containers_quota_limits_the_cores(monkeypatch, tmp_path, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert machine.usable_cores(tmp_path / "cpu.max") == cores
    assert machine.usable_cores(tmp_path / "absent") == 4


def test_more_threads_than_cores_are_a_problem(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert [str(f.level) for f in machine.processors(HERE)] == ["ok", "problem"]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [str(f.level) for f in machine.processors(HERE)] == ["ok"]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("MemTotal: 8 kB\nMemAvailable:    8000000 kB\n", "ok"),
        ("MemAvailable: 100 kB\n", "problem"),
        ("", "note"),
    ],
)
def test_memory_is_read_from_the_systems_table(tmp_path, text, level):
    (tmp_path / "meminfo").write_text(text)
    (finding,) = machine.memory(HERE, tmp_path / "meminfo")
    assert finding.level == level


def test_a_full_disk_is_a_problem_even_for_a_folder_to_come(monkeypatch, tmp_path):
    assert [str(f.level) for f in machine.disk(tmp_path / "not" / "yet")] == ["ok"]
    full = SimpleNamespace(free=1000)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: full)
    (finding,) = machine.disk(tmp_path / "not" / "yet")
    assert finding.level == "problem"
    assert str(tmp_path) in finding.remedy


def test_a_check_that_cannot_import_is_a_finding_not_a_crash(monkeypatch):
    def needs_torch(_):
        raise ImportError("no torch here")

    monkeypatch.setattr(checks, "CHECKS", {"environment": (needs_torch,)})
    (finding,) = examine({"environment": HERE})["environment"]
    assert finding.level == "problem"
    assert "no torch here" in finding.message
