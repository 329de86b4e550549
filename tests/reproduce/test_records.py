"""Records are small, hold no private path, and give the same tables and figures to the byte."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from crossbatch.errors import DataError
from crossbatch.reports.runs import read_run
from crossbatch.reproduce.folder import (
    RECORDS_FILE,
    GridFolder,
    keep_records,
    thinned,
    unpacked_records,
)
from crossbatch.reproduce.tables import write_table1, write_table2

from .conftest import events


@pytest.fixture
def grid(make_grid_run, tmp_path):
    rng = np.random.default_rng(0)
    for strategy in ("in_batch", "uniform", "cross_batch", "balanced"):
        for seed in (0, 1):
            make_grid_run("mind", strategy, seed, (rng.random(500) < 0.2) * rng.random(500))
    unfinished = make_grid_run("mind", "cross_batch", 0, np.ones(3), capacity=8)
    (unfinished / "result.json").unlink()
    (unfinished / "best").mkdir()
    folder = GridFolder(tmp_path / "grid")
    folder.add_facts(paper=True)
    (folder.path / "settings.toml").write_text("# chosen")
    return folder


def test_tables_and_figures_are_the_same(grid, tmp_path):
    keep_records(grid, tmp_path / "kept")
    kept = GridFolder(tmp_path / "kept")
    written = [*write_table1(grid), *write_table2(grid)]
    # A size whose only run is unfinished has no record: leave it out of both.
    again = [*write_table1(kept), *write_table2(kept)]
    assert [path.name for path in written] == [path.name for path in again]
    for ours, theirs in zip(written, again, strict=True):
        if not ours.name.startswith("table2"):
            content = re.sub(rb"\[(\d)\]\(runs/[^)]*\)", rb"\1", ours.read_bytes())  # no links
            assert content == theirs.read_bytes(), ours.name


def test_per_user_metrics_are_exact(grid, tmp_path):
    keep_records(grid, tmp_path / "kept")
    run = read_run(grid.path / "runs/mind-uniform-s1")
    record = next(r for r in GridFolder(tmp_path / "kept").runs() if r.name == run.name)
    for metric in ("recall@50", "ndcg_comirec@50", "ndcg@50"):
        np.testing.assert_array_equal(run.per_user(metric), record.per_user(metric))
    assert record.per_user("recall@20") is None  # no gain of it is shown


def test_records_are_small_and_say_nothing_private(grid, tmp_path):
    written = keep_records(grid, tmp_path / "kept")
    assert tmp_path / "kept" / RECORDS_FILE in written
    assert tmp_path / "kept" / "settings.toml" in written
    assert (tmp_path / "kept" / RECORDS_FILE).stat().st_size < 8 * 6_000
    unpacked = unpacked_records(tmp_path / "kept")
    files = [path for path in unpacked.rglob("*") if path.is_file()]
    assert not any(b"private" in path.read_bytes() for path in files)
    config = json.loads((unpacked / "runs/mind-uniform-s0/config.json").read_text())
    assert config["dataset"] == {"path": "toy", "checksum": "c0ffee"}
    assert not (unpacked / "runs/mind-cross_batch-M8-s0").exists()  # unfinished


def test_keeping_twice_changes_nothing_and_other_runs_stay(grid, tmp_path, make_grid_run):
    keep_records(grid, tmp_path / "kept")
    before = (tmp_path / "kept" / RECORDS_FILE).read_bytes()
    keep_records(grid, tmp_path / "kept")
    assert (tmp_path / "kept" / RECORDS_FILE).read_bytes() == before
    shutil.rmtree(grid.path / "runs")
    make_grid_run("mind", "auto", 0, np.ones(3))
    keep_records(grid, tmp_path / "kept")
    names = [run.name for run in GridFolder(tmp_path / "kept").runs()]
    assert len(names) == 9
    assert "mind-auto-s0" in names
    assert "mind-uniform-s1" in names


def test_a_broken_file_of_records_is_one_sentence(grid, tmp_path):
    keep_records(grid, tmp_path / "kept")
    path = tmp_path / "kept" / RECORDS_FILE
    for content in (path.read_bytes()[:-900], b"", b"records"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be unpacked"):
            GridFolder(tmp_path / "kept").runs()


def test_a_thinned_journal_keeps_all_but_training_lines():
    journal = events(tuple(0.001 * i for i in range(300)))
    kept = thinned(journal)
    train = [event for event in kept if event["event"] == "train"]
    assert len(train) <= 13
    assert train[-1]["step"] == 30_000
    assert train[0]["diagnostics"]["hardness"] == 0.1429
    evaluations = [event for event in kept if event["event"] == "eval"]
    assert len(evaluations) == 300
    assert evaluations[1]["metrics"] == {"recall@50": 0.001, "ndcg@50": 0.0005}
    assert kept[0] == {"event": "start", "step": 0}
    assert kept[-1]["reason"] == "patience"
