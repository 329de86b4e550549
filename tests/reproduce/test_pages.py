"""Drift, lemma and curves: pages, numbers and figures from hand-made journals."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from crossbatch.errors import DataError
from crossbatch.reproduce.curves import (
    curve_plots,
    drift_plots,
    read_probes,
    write_curves,
    write_drift,
    write_lemma,
)
from crossbatch.reproduce.folder import GridFolder, run_name

from .conftest import events, page_tables

SVG = "{http://www.w3.org/2000/svg}"
STEPS = (11, 100, 211)


def probe_events(strategy: str) -> list[dict]:
    lines: list[dict] = []
    for step in STEPS:
        drift = {
            str(dt): {"sum": 100.0 * dt / step, "mean": 5.0 * dt / step, "relative": dt / step}
            for dt in (1, 5, 10)
        }
        line = {"event": "probe", "step": step, "drift": drift}
        if strategy != "in_batch":
            line["lemma"] = {
                "epsilon": 0.5 / step, "deviation": 1.0 / step, "deviation_max": 4.0 / step,
                "bound": 2.0 / step, "relative": 0.01, "constant": step / 10, "jacobian": step / 5,
            }  # fmt: skip
        lines.append(line)
    return lines


@pytest.fixture
def grid(make_grid_run, tmp_path):
    for strategy in ("in_batch", "cross_batch", "balanced"):
        journal = probe_events(strategy)
        make_grid_run("mind", strategy, 0, np.ones(3), part="probes", journal=journal)
    return GridFolder(tmp_path / "grid")


def figure(folder: GridFolder, name: str) -> ElementTree.Element:
    return ElementTree.fromstring((folder.path / "figures" / f"{name}.svg").read_text())


def texts(root: ElementTree.Element) -> set[str | None]:
    return {element.text for element in root.iter(f"{SVG}text")}


def test_drift_at_the_start_at_the_warm_ups_end_and_at_the_last_step(grid):
    write_drift(grid)
    table = page_tables((grid.path / "drift.md").read_text())[0]
    line = next(line for line in table if line[:3] == ["MIND", "In-batch", "10"])
    cells = dict(zip(table[0], line, strict=True))
    expected = {"first": 1000 / 11, "warm-up": 1000 / 100, "last": 1000 / 211}
    for when, value in expected.items():
        assert cells[f"sum over items, {when}"] == f"{value:.4g}"
        assert cells[f"mean over items, {when}"] == f"{value / 20:.4g}"
    assert cells["Run"] == "mind-in_batch-s0"


def test_drift_figure_is_of_the_in_batch_run_and_marks_the_warm_up(grid):
    plots = drift_plots(read_probes(grid))
    assert [plot.name for plot in plots] == ["drift-sum", "drift-relative"]
    assert [line.label for line in plots[0].lines] == ["Δt = 1", "Δt = 5", "Δt = 10"]
    assert plots[0].lines[2].curve.x == tuple(map(float, STEPS))
    assert [(mark.x, mark.label) for mark in plots[0].marks] == [(100.0, "warm-up ends")]
    write_drift(grid)
    root = figure(grid, "drift")
    assert {"step", "drift, sum over items", "warm-up ends", "Δt = 10"} <= texts(root)
    marks = [line for line in root.iter(f"{SVG}line") if line.get("class") == "mark"]
    assert len(marks) == 2


def test_lemma_table_and_figure(grid):
    write_lemma(grid)
    table = page_tables((grid.path / "lemma.md").read_text())[0]
    assert [line[1] for line in table[2:]] == [
        "Cross-batch, as published",
        "Cross-batch, balanced",
    ]
    cells = dict(zip(table[0], table[2], strict=True))
    assert cells["deviation, warm-up"] == "0.01"
    assert cells["bound C ε, last"] == f"{2 / 211:.3g}"
    assert cells["C needed"] == "21.1"  # the largest of all training, not the last by luck
    assert cells["C of the tower"] == "42.2"
    shown = texts(figure(grid, "lemma"))
    assert {"squared gradient deviation", "C, largest of 8 users", "C = 1, the paper"} <= shown


def test_every_measurement_is_in_the_files(grid):
    write_drift(grid)
    write_lemma(grid)
    drift = json.loads((grid.path / "drift.json").read_text())["rows"]
    assert len(drift) == 3 * len(STEPS)
    assert drift[0]["drift"]["5"]["sum"] == pytest.approx(500 / 11)
    lemma = json.loads((grid.path / "lemma.json").read_text())["rows"]
    assert len(lemma) == 2 * len(STEPS)
    assert (grid.path / lemma[0]["run"]).is_dir()


def test_without_probes_the_remedy_is_named(tmp_path):
    for write in (write_drift, write_lemma, write_curves):
        with pytest.raises(DataError, match="--data"):
            write(GridFolder(tmp_path))


def test_curves_are_means_over_seeds_up_to_the_first_stop(make_grid_run, tmp_path):
    make_grid_run("mind", "in_batch", 0, np.ones(3), journal=events((0.02, 0.06, 0.10)))
    make_grid_run("mind", "in_batch", 1, np.ones(3), journal=events((0.04, 0.04)))
    folder = GridFolder(tmp_path / "grid")
    recall, ndcg = curve_plots(folder.table_runs())
    assert recall.lines[0].curve.x == (100.0, 200.0)
    assert recall.lines[0].curve.y == pytest.approx((3.0, 5.0))
    assert recall.lines[0].best == 1
    assert ndcg.lines[0].curve.x == pytest.approx((10 / 60, 20 / 60))
    assert ndcg.lines[0].curve.y == pytest.approx((1.5, 2.5))
    write_curves(folder)
    assert {"step", "minutes", "Recall@50, %", "NDCG@50, %"} <= texts(figure(folder, "curves"))
    rows = json.loads((folder.path / "curves.json").read_text())["rows"]
    assert len(rows) == 5  # every evaluation of every run


def test_a_foreign_folder_in_the_grid_is_named(make_grid_run, tmp_path):
    path = make_grid_run("mind", "in_batch", 0, np.ones(3))
    path.rename(path.with_name("mine"))
    with pytest.raises(DataError, match="like youtube_dnn-in_batch-s0"):
        GridFolder(tmp_path / "grid").table_runs()


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("youtube_dnn-in_batch-s0", ("youtube_dnn", "in_batch", None, 0)),
        ("mind-balanced-M10112-s12", ("mind", "balanced", 10112, 12)),
    ],
)
def test_names_are_read_back(make_grid_run, tmp_path, name, place):
    path = make_grid_run("mind", "in_batch", 0, np.ones(3))
    path.rename(path.with_name(name))
    (run,) = GridFolder(tmp_path / "grid").runs()
    found = run_name(run)
    assert (found.model, found.strategy, found.capacity, found.seed) == place
