"""Every benchmark runs on tiny sizes and writes its results; times are not checked."""

import json
import subprocess
import sys

import pytest

from crossbatch.data import prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source

from .conftest import BENCHMARKS

pytestmark = pytest.mark.slow
RESULTS = {
    "growth": ("curves",),
    "validation": ("rows",),
    "memory": ("training", "opening_seconds"),
    "retrieval": ("results",),
    "steps_at_sizes": ("rows",),
}


def run(script, *words):
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--quick", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def results(script, out):
    printed = run(script, "--out", out)
    assert "|" in printed
    document = json.loads((out / f"{script}.json").read_text())
    assert document["quick"] is True
    assert document["machine"]["cores"] >= 1
    return document


@pytest.mark.parametrize("script", RESULTS)
def test_results_are_written(script, tmp_path):
    document = results(script, tmp_path)
    assert all(document[key] for key in RESULTS[script])


def test_every_model_and_sampler_is_timed_and_has_a_floor(tmp_path):
    document = results("steps", tmp_path)
    assert len(document["floors"]) == 12
    for label, floor in document["floors"].items():
        parts = {key: part for key, part in floor["seconds"].items() if key != "floor"}
        assert floor["seconds"]["floor"] == pytest.approx(sum(parts.values()))
        assert min(parts.values()) > 0
        assert min(document["rows"][label]["cpu"]) > 0
    assert document["targets"]
    assert (tmp_path / "steps.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("script", ["loss", "data_prepare"])
def test_other_benchmarks_run(script, tmp_path):
    words = ["--out", tmp_path / "loss.json"] if script == "loss" else []
    assert run(script, *words)


def test_batches_of_shards_are_measured():
    assert "| 4 shards |" in run("data_batches", "--shards", 4)


def test_baselines_are_measured_on_a_dataset(tmp_path):
    prepare(synthetic_source(SynthOptions(users=300, items=100, interactions=4000)), tmp_path / "d")
    command = [sys.executable, str(BENCHMARKS / "baselines.py"), str(tmp_path / "d")]
    done = subprocess.run(
        [*command, "--names", "popularity,ease"], check=True, capture_output=True, text=True
    )
    head, rule, popularity, ease = done.stdout.splitlines()
    assert head.count("|") == rule.count("|") == popularity.count("|") == ease.count("|")
    assert "| d | ease | l2 " in ease


def test_the_whole_path_is_measured(tmp_path):
    printed = run("whole_path", "--work", tmp_path / "work", "--out", tmp_path)
    document = json.loads((tmp_path / "whole_path.json").read_text())
    assert document["dims"]["64"]["result"]["steps"] == 20
    for command in ("prepare", "train", "evaluate", "export", "serve"):
        assert f"| {command}" in printed
