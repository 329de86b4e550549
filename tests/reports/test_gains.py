from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from crossbatch.reports.comparison import Comparison, Row, compare
from crossbatch.reports.runs import read_runs

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import MakeRun


def compared(*paths: Path) -> Comparison:
    return compare(read_runs(paths))


def row_of(comparison: Comparison, sampler: str) -> Row:
    return next(row for row in comparison.rows if row.sampler == sampler)


def test_gain_is_relative_over_shared_seeds(make_run: MakeRun) -> None:
    def add(sampler: str, seed: int, value: float) -> Path:
        return make_run(f"{sampler}{seed}", sampler=sampler, seed=seed, test={"recall@50": value})

    comparison = compared(
        add("in_batch", 0, 0.10), add("in_batch", 1, 0.20), add("in_batch", 2, 0.90),
        add("mixed", 0, 0.12), add("mixed", 1, 0.21),
    )  # fmt: skip
    gain = row_of(comparison, "Mixed (MNS)").gains["recall@50"]
    assert gain.relative == pytest.approx((0.12 + 0.21) / (0.10 + 0.20) - 1)
    assert gain.interval is None  # no per-user arrays
    assert row_of(comparison, "In-batch").gains == {}


def test_gain_interval_agrees_with_a_bootstrap_written_out(make_run: MakeRun) -> None:
    rng = np.random.default_rng(0)
    base = rng.random(300)
    ours = np.clip(base * 1.1 + rng.normal(0, 0.1, 300), 0, 1)
    comparison = compared(
        make_run("base", per_user={"recall@50": base.tolist()}),
        make_run("ours", sampler="mixed", per_user={"recall@50": ours.tolist()}),
    )
    gain = row_of(comparison, "Mixed (MNS)").gains["recall@50"]
    assert gain.relative == pytest.approx(ours.mean() / base.mean() - 1, rel=1e-5)
    draws = np.random.default_rng(123).integers(0, 300, (20_000, 300))
    ratios = ours[draws].mean(axis=1) / base[draws].mean(axis=1) - 1
    assert gain.interval == pytest.approx(np.quantile(ratios, [0.025, 0.975]), abs=0.003)
    assert gain.certain


def test_users_pair_only_when_they_are_as_many(make_run: MakeRun) -> None:
    comparison = compared(
        make_run("base", per_user={"recall@50": [0.2, 0.4]}),
        make_run("ours", sampler="mixed", per_user={"recall@50": [0.2, 0.4, 0.6]}),
    )
    gain = row_of(comparison, "Mixed (MNS)").gains["recall@50"]
    assert gain.relative == pytest.approx(0.4 / 0.3 - 1)
    assert gain.interval is None


def test_users_without_a_target_are_left_out_of_the_draw(make_run: MakeRun) -> None:
    base, ours = [0.2, 0.4] * 30, [0.3, 0.6] * 30
    nan = float("nan")
    paths = [
        make_run("base", per_user={"recall@50": [*base, nan]}, result={"test": {"recall@50": 0.3}}),
        make_run(
            "ours",
            sampler="mixed",
            per_user={"recall@50": [*ours, nan]},
            result={"test": {"recall@50": 0.45}},
        ),
    ]
    gain = row_of(compared(*paths), "Mixed (MNS)").gains["recall@50"]
    assert gain.relative == pytest.approx(0.5)
    assert gain.interval == pytest.approx((0.5, 0.5), abs=1e-5)


def test_measures_without_better_and_worse_have_no_gain(make_run: MakeRun) -> None:
    test = {"recall@50": 0.1, "coverage@50": 0.5, "popularity_rank@50": 0.2}
    paths = [make_run("base", test=test), make_run("ours", sampler="mixed", test=test)]
    assert set(row_of(compared(*paths), "Mixed (MNS)").gains) == {"recall@50"}


def test_a_reference_of_zero_has_no_gain(make_run: MakeRun) -> None:
    comparison = compared(
        make_run("base", test={"recall@50": 0.0}),
        make_run("ours", sampler="mixed", test={"recall@50": 0.1}),
    )
    assert row_of(comparison, "Mixed (MNS)").gains == {}
