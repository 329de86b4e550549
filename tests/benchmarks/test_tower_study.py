"""The table of changes of the default tower, from records written by hand."""

import pytest

from tower_study import CHANGES, DEFAULT, METRICS, measured


def run(change, seed, value, seconds, passes=1.0):
    metrics = {metric: value + place / 10 for place, metric in enumerate(METRICS)}
    row = {"change": change, "passes": passes, "seed": seed, "cpu_seconds": seconds}
    return row | {"valid": metrics, "test": dict.fromkeys(METRICS, 0.0)}


def test_gains_are_over_the_default_with_the_same_seeds():
    runs = [
        run("width 128", 0, 0.30, 5.0),
        run("width 128", 1, 0.40, 6.0),
        run("width 128", 2, 9.99, 9.0),  # the default has no such seed
        run(DEFAULT, 0, 0.25, 10.0),
        run(DEFAULT, 1, 0.20, 10.0),
        run("width 64", 0, 0.10, 1.0, passes=5.0),  # nor these passes
    ]
    default, width, alone = measured(runs)
    assert (default["change"], width["change"], alone["change"]) == (
        DEFAULT,
        "width 128",
        "width 64",
    )
    assert width["seeds"] == 2
    for place, metric in enumerate(METRICS):
        assert width[metric] == pytest.approx(0.35 + place / 10)
        assert width[f"gain in {metric}"] == pytest.approx((0.05 + 0.20) / 2)
        assert f"gain in {metric}" not in alone
    assert width["time"] == pytest.approx(0.55)
    assert alone["time"] is None


def test_the_default_changes_nothing():
    change = CHANGES[DEFAULT]
    assert (change.recipe, change.passes, change.average) == ({}, 1.0, False)
    assert change.towers is None
    assert change.trainer is None
