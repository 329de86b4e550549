from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from crossbatch.reports.comparison import Comparison, compare, estimate
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.runs import read_runs

from .conftest import MakeRun, run_config

if TYPE_CHECKING:
    from pathlib import Path


def compared(*paths: Path) -> Comparison:
    return compare(read_runs(paths))


def test_seeds_are_averaged_with_their_sample_standard_deviation(make_run: MakeRun) -> None:
    values = [0.10, 0.12, 0.17]
    paths = [make_run(f"s{i}", seed=i, test={"recall@50": v}) for i, v in enumerate(values)]
    row = compared(*paths).rows[0]
    mean = sum(values) / 3
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    assert row.metrics["recall@50"].mean == pytest.approx(mean)
    assert row.metrics["recall@50"].spread == pytest.approx(spread)


def test_one_seed_has_no_spread_and_no_seed_no_estimate() -> None:
    one = estimate([None, 0.5])
    assert one is not None
    assert (one.mean, one.spread) == (0.5, None)
    assert estimate([None]) is None


def test_unfinished_seeds_count_for_time_but_not_for_metrics(make_run: MakeRun) -> None:
    comparison = compared(
        make_run("done", seed=0, result={"seconds_per_1000_steps": 50.0}),
        make_run("going", seed=1, finished=False),  # its journal says 100 s per 1000 steps
    )
    row = comparison.rows[0]
    assert row.metrics["recall@50"].spread is None
    assert row.seconds_per_1000_steps is not None
    assert row.seconds_per_1000_steps.mean == pytest.approx(75.0)


def test_baselines_stand_first_and_once(make_run: MakeRun) -> None:
    baselines = {"popularity": {"test": {"recall@50": 0.02}}, "broken": 3}
    paths = [make_run(f"s{seed}", seed=seed, result={"baselines": baselines}) for seed in (0, 1)]
    comparison = compared(*paths)
    assert [row.label for row in comparison.rows] == ["Popularity", "MIND · In-batch"]
    assert comparison.rows[0].metrics["recall@50"].mean == 0.02
    assert comparison.rows[0].runs == ()


def test_two_data_sets_of_one_name_are_told_apart(make_run: MakeRun) -> None:
    settings = run_config("mind", {"name": "in_batch"}, 0)
    settings["dataset"] = {"path": "other/toy", "checksum": "0123456789abc"}
    comparison = compared(make_run("a"), make_run("b", config=settings))
    assert sorted(comparison.datasets) == ["toy (01234567)", "toy (c0ffee)"]


def test_columns_are_ordered_by_cutoff_and_kind(make_run: MakeRun) -> None:
    kinds = ("ndcg", "hit_rate", "recall", "ndcg_comirec", "coverage")
    test = {f"{kind}@{k}": 0.5 for kind in kinds for k in (100, 20)}
    comparison = compared(make_run("a", test=test, journal=None))
    assert comparison.table_metrics == [
        "recall@20", "ndcg_comirec@20", "ndcg@20", "recall@100", "ndcg_comirec@100", "ndcg@100",
    ]  # fmt: skip
    assert comparison.metrics[3:5] == ["hit_rate@20", "coverage@20"]
    assert comparison.headline == "recall@100"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("recall@20", "Recall@20"),
        ("ndcg_comirec@50", "NDCG@50 (paper)"),
        ("hit_rate@5", "Hit rate@5"),
        ("novel@3", "novel@3"),
        ("coverage", "Coverage"),
    ],
)
def test_metric_names(key: str, name: str) -> None:
    assert metric_name(key) == name
