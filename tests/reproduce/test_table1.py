"""Table 1's arithmetic, done again by other means from the run folders."""

from __future__ import annotations

import csv
import json
import statistics
from xml.etree import ElementTree

import numpy as np
import pytest

from crossbatch.reproduce.folder import GridFolder
from crossbatch.reproduce.tables import METRICS, write_table1

from .conftest import page_tables

SEEDS = (0, 1, 2)


def users(seed: int, share: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random(300) < share).astype(np.float32)


@pytest.fixture
def grid(make_grid_run, tmp_path):
    """Two models, three strategies, three seeds; uniform is clearly better than in-batch."""
    for model in ("youtube_dnn", "mind"):
        for seed in SEEDS:
            base = users(seed, 0.3)
            make_grid_run(model, "in_batch", seed, base)
            make_grid_run(model, "uniform", seed, np.maximum(base, users(seed + 9, 0.3)))
            make_grid_run(model, "cross_batch", seed, users(seed + 5, 0.3))
            make_grid_run(model, "cross_batch", seed, base, capacity=4)  # Table 2's, not ours
    folder = GridFolder(tmp_path / "grid")
    folder.add_facts(
        dataset={"name": "toy", "users": 9, "items": 20, "interactions": 99}, paper=False
    )
    return folder


def per_user(folder: GridFolder, name: str) -> np.ndarray:
    path = folder.path / "runs" / name / "per_user" / "test_recall@50.npy"
    return np.load(path).astype(np.float64)


def rows_of(folder: GridFolder) -> dict[tuple[str, str], dict]:
    document = json.loads((folder.path / "table1.json").read_text())
    return {(row["model"], row.get("strategy", "")): row for row in document["rows"]}


def test_means_spreads_and_gains_are_those_of_the_runs(grid):
    write_table1(grid)
    rows = rows_of(grid)
    assert set(rows) == {
        ("Popularity", ""),
        *((m, s) for m in ("youtube_dnn", "mind") for s in ("in_batch", "uniform", "cross_batch")),
    }
    for model in ("youtube_dnn", "mind"):
        means = {
            strategy: [per_user(grid, f"{model}-{strategy}-s{seed}").mean() for seed in SEEDS]
            for strategy in ("in_batch", "uniform", "cross_batch")
        }
        for strategy, values in means.items():
            row = rows[model, strategy]
            assert row["seeds"] == list(SEEDS)
            assert row["runs"] == [f"runs/{model}-{strategy}-s{seed}" for seed in SEEDS]
            for metric in METRICS:
                assert row["metrics"][metric]["mean"] == pytest.approx(statistics.fmean(values))
                assert row["metrics"][metric]["sd"] == pytest.approx(statistics.stdev(values))
            assert row["seconds_per_1000_steps"] == {"mean": 101.0, "sd": 1.0}
            assert row["cpu_seconds_per_1000_steps"] == {"mean": 51.0, "sd": 1.0}
        assert rows[model, "in_batch"]["gains"]["recall@50"] is None
        gain = sum(means["uniform"]) / sum(means["in_batch"]) - 1
        assert rows[model, "uniform"]["gains"]["recall@50"]["relative"] == pytest.approx(gain)


def test_intervals_are_those_of_a_plain_bootstrap(grid):
    """Draw users and seeds one by one, the same for both sides, and take the quantiles."""
    write_table1(grid)
    found = rows_of(grid)["mind", "uniform"]["gains"]["recall@50"]
    ours, base = (
        np.stack([per_user(grid, f"mind-{strategy}-s{seed}") for seed in SEEDS])
        for strategy in ("uniform", "in_batch")
    )
    rng = np.random.default_rng(7)
    gains = []
    for _ in range(4000):
        drawn = rng.integers(0, ours.shape[1], ours.shape[1])
        seeds = rng.integers(0, len(SEEDS), len(SEEDS))
        gains.append(ours[seeds][:, drawn].mean() / base[seeds][:, drawn].mean() - 1)
    low, high = np.quantile(gains, [0.025, 0.975])
    width = high - low
    assert found["low"] == pytest.approx(low, abs=0.06 * width)
    assert found["high"] == pytest.approx(high, abs=0.06 * width)
    assert found["low"] > 0  # it is certain


def test_the_page_says_what_the_numbers_say(grid):
    write_table1(grid)
    page = (grid.path / "table1.md").read_text()
    ours, gains = page_tables(page)
    row = rows_of(grid)["mind", "uniform"]
    line = next(line for line in ours if line[:2] == ["MIND", "Uniform"])
    mean, sd = (100 * row["metrics"]["recall@50"][key] for key in ("mean", "sd"))
    assert line[ours[0].index("Recall@50")] == f"{mean:.2f} ± {sd:.2f}"
    assert line[-1] == "0 1 2"
    for seed in SEEDS:
        assert f"[{seed}](runs/mind-uniform-s{seed})" in page
        assert (grid.path / f"runs/mind-uniform-s{seed}").is_dir()
    gain = row["gains"]["recall@50"]
    line = next(line for line in gains if line[:2] == ["MIND", "Uniform"])
    text = (
        f"▲ {100 * gain['relative']:+.1f} % [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"
    )
    assert line[2] == text
    assert "Shortened" not in page
    assert "Beside the paper" not in page


def test_csv_holds_the_same_numbers(grid):
    write_table1(grid)
    with (grid.path / "table1.csv").open() as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        row = rows_of(grid)[line["model"], line["strategy"]]
        if line["strategy"]:
            assert float(line["metrics.ndcg@50.mean"]) == row["metrics"]["ndcg@50"]["mean"]
            assert line["runs"].split() == row["runs"]


def test_short_runs_are_labelled(grid):
    grid.add_facts(budget=500)
    write_table1(grid)
    assert "**Shortened: every run was cut to 500 steps." in (grid.path / "table1.md").read_text()
    assert json.loads((grid.path / "table1.json").read_text())["budget"] == 500


def test_the_papers_numbers_stand_beside_where_asked(grid):
    grid.add_facts(paper=True)
    write_table1(grid)
    beside = page_tables((grid.path / "table1.md").read_text())[-1]
    line = next(line for line in beside if line[:2] == ["YouTube DNN", "Cross-batch, as published"])
    cells = dict(zip(beside[0], line, strict=True))
    assert cells["Avg. time, s / 1000 steps"].endswith("/ 20.4")
    assert cells["Recall@50"].endswith("/ 7.08")
    assert cells["NDCG@50 (paper)"].endswith("/ 11.88")
    assert cells["Gain, NDCG@50 (paper)"].endswith("/ +3.2 %")  # the paper's own claim: 3.23 %
    assert rows_of(grid)["youtube_dnn", "cross_batch"]["paper"]["recall@50"] == 7.084


def test_baselines_of_the_grid_are_rows(grid):
    document = {"baselines": {"item_knn": {"test": dict.fromkeys(METRICS, 0.25)}}}
    (grid.path / "baselines.json").write_text(json.dumps(document))
    write_table1(grid)
    line = page_tables((grid.path / "table1.md").read_text())[0][2]
    assert line[0] == "Item k-NN"
    assert line[5:11] == ["25.00"] * 6
    assert line[-1] == "measured"


def test_gains_are_drawn(grid):
    written = write_table1(grid)
    drawing = grid.path / "figures" / "gain.svg"
    assert drawing in written
    root = ElementTree.fromstring(drawing.read_text())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "MIND: gain in Recall@50 over in-batch, %" in texts
    assert texts.count("Uniform") == 2
    bars = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    assert len(bars) == 1 + 4  # the ground, and a bar for each gain


def test_a_part_of_a_grid_gives_a_part_of_the_table(make_grid_run, tmp_path):
    make_grid_run("mind", "cross_batch", 0, users(0, 0.5))
    folder = GridFolder(tmp_path / "grid")
    write_table1(folder)
    row = rows_of(folder)["mind", "cross_batch"]
    assert row["metrics"]["recall@50"]["sd"] is None
    assert row["gains"]["recall@50"] is None


def test_what_others_are_measured_by_is_not_in_the_table(make_grid_run, tmp_path):
    for strategy in ("in_batch", "uniform", "full", "drift_limited", "sized_bank"):
        make_grid_run("mind", strategy, 0, np.full(10, 0.2))
    folder = GridFolder(tmp_path / "grid")
    write_table1(folder)
    rows = json.loads((folder.path / "table1.json").read_text())["rows"]
    assert {row.get("strategy") for row in rows} == {None, "in_batch", "uniform"}
