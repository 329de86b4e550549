"""Every benchmark runs to its end on toy sizes and leaves its results; times are not looked at."""

import json
import subprocess
import sys

import pytest

from .conftest import BENCHMARKS

RESULTS = {
    "steps": ("rows", "floors", "targets", "speed"),
    "growth": ("curves",),
    "validation": ("models",),
    "memory": ("training", "opening_seconds"),
    "retrieval": ("results",),
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


def run(script, *words):
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--quick", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", RESULTS)
def test_results_are_written(script, out):
    printed = run(script, "--out", out)
    document = json.loads((out / f"{script}.json").read_text())
    assert document["quick"] is True
    assert document["machine"]["cores"] >= 1
    assert all(document[key] for key in RESULTS[script])
    assert "|" in printed


@pytest.mark.slow
def test_every_model_and_sampler_has_a_floor_below_its_time(out):
    document = json.loads((out / "steps.json").read_text())
    assert len(document["floors"]) == 12
    for label, floor in document["floors"].items():
        assert 0 < floor["seconds"]["floor"] < min(document["rows"][label]["cpu"])


@pytest.mark.slow
@pytest.mark.parametrize("script", ["loss", "data_prepare"])
def test_other_benchmarks_run(script, out):
    words = ["--out", out / "loss.json"] if script == "loss" else []
    assert run(script, *words)
