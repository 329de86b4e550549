"""Medians, ratios and verdicts of the step benchmark, from given times."""

import json

import pytest

from measure.floor import Work
from measure.machine import PROBES
from measure.report import Target, markdown, quartiles, summary
from measure.workers import Row


class Silent:
    def __init__(self):
        self.versions = {"crossbatch": "0"}


def row(label, cpu, wall=None):
    return Row(label, Silent(), label, 1, list(cpu), list(wall or cpu))


def measured():
    speeds = {"GEMM": 1e11, "copy": 1e10, "exp": 1e9}
    rows = [row(name, [PROBES[name] / value] * 3) for name, value in speeds.items()]
    rows += [
        row("youtube_dnn in_batch", [0.001, 0.002, 0.003]),
        row("youtube_dnn cross_batch", [0.002, 0.003, 0.005]),
        row("TFRS, Adagrad", [0.008, 0.008, 0.009]),
    ]
    work = {"youtube_dnn in_batch": Work({"all": 1e8}, rows=0, d=64, exponentials=0)}
    return summary(rows, work) | {"machine": {"cpu": "a test"}}


def test_speed_is_work_over_the_probes_median():
    assert measured()["speed"] == pytest.approx({"GFLOP/s": 100, "GB/s": 10, "ns per exp": 1})


def test_ratios_are_medians_over_turns():
    targets = {(t["above"], t["below"]): t for t in measured()["targets"]}
    tfrs = targets["TFRS, Adagrad", "youtube_dnn in_batch"]
    assert tfrs["value"] == pytest.approx(4.0)  # of 8, 4 and 3
    assert (tfrs["aim"], tfrs["met"]) == ("≥ 4", True)
    added = targets["youtube_dnn cross_batch", "youtube_dnn in_batch"]
    assert (added["unit"], added["value"]) == ("ms", pytest.approx(1.0))


def test_tables_name_the_floor_and_the_verdict():
    text = markdown(json.loads(json.dumps(measured())))
    assert "| youtube_dnn in_batch | 2.00 | 1.50-2.50 | 1.00 | 2.00 | ≤ 2.5 | ok |" in text
    assert "| TFRS, Adagrad ÷ youtube_dnn in_batch | 4 × | 3.5-6 | ≥ 4 | ok |" in text


@pytest.mark.parametrize(
    ("target", "good", "bad"),
    [
        (Target("a", "b", at_least=4), 4.0, 3.9),
        (Target("a", "b", at_most=1.5), 1.5, 1.6),
    ],
)
def test_a_target_is_met_at_its_value(target, good, bad):
    assert target.met(good)
    assert not target.met(bad)


def test_one_value_is_all_its_quartiles():
    assert quartiles([2.0]) == (2.0, 2.0, 2.0)
    assert quartiles([1.0, 2.0, 3.0]) == (1.5, 2.0, 2.5)
