from __future__ import annotations

import json

import pytest

from crossbatch.reports.journal import Curve
from crossbatch.reports.plots import (
    MAX_POINTS,
    colors_of,
    diagnostic_plots,
    thin,
    training_plots,
)
from crossbatch.reports.runs import read_run, read_runs
from crossbatch.reports.variants import group_runs

from .conftest import MakeRun, run_config, toy_journal


def test_training_plots_of_one_run(make_run: MakeRun) -> None:
    path = make_run("a", journal=toy_journal([0.05, 0.08, 0.07]))
    plots = {plot.name: plot for plot in training_plots(group_runs(read_runs([path])), "recall@50")}
    assert list(plots) == ["recall", "ndcg", "loss"]
    recall = plots["recall"].lines[0]
    assert recall.curve.x == (100, 200, 300)
    assert recall.curve.y == pytest.approx((5, 8, 7))
    assert recall.best == 1
    ndcg = plots["ndcg"].lines[0].curve
    assert ndcg.x == pytest.approx((10 / 60, 20 / 60, 30 / 60))  # minutes
    assert ndcg.y == pytest.approx((2.5, 4, 3.5))
    assert plots["loss"].lines[0].curve.y == pytest.approx((5, 2.5, 5 / 3))
    assert plots["recall"].title == "Validation Recall@50"


def test_several_models_get_a_plot_each_and_samplers_keep_their_colour(make_run: MakeRun) -> None:
    paths = [
        make_run(f"{model}-{sampler}", model=model, sampler=sampler)
        for model, sampler in [("mind", "mixed"), ("mind", "in_batch"), ("gru4rec", "mixed")]
    ]
    variants = group_runs(read_runs(paths))
    recalls = [plot for plot in training_plots(variants, "recall@50") if plot.name == "recall"]
    assert [plot.title.split(" · ")[1] for plot in recalls] == ["GRU4Rec", "MIND"]
    colors = {line.color for plot in recalls for line in plot.lines if line.label == "Mixed (MNS)"}
    assert colors == {colors_of(variants)["Mixed (MNS)"]}


def test_seeds_share_label_and_colour(make_run: MakeRun) -> None:
    variants = group_runs(read_runs([make_run(f"s{seed}", seed=seed) for seed in (0, 1)]))
    lines = training_plots(variants, "recall@50")[0].lines
    assert {(line.label, line.color) for line in lines} == {("In-batch", 0)}
    assert [line.note for line in lines] == ["seed 0", "seed 1"]


def test_runs_without_journal_draw_nothing(make_run: MakeRun) -> None:
    run = make_run("a", journal=None)
    assert training_plots(group_runs(read_runs([run])), "recall@50") == []
    assert diagnostic_plots(read_run(run)) == []


def test_diagnostics_show_known_keys_first_and_new_ones_too(make_run: MakeRun) -> None:
    events = [
        {"event": "train", "step": step, "diagnostics": {"zeta": step, "hardness": 1.0, "bad": "x"}}
        for step in (1, 2)
    ]
    plots = diagnostic_plots(read_run(make_run("a", journal=events)))
    assert [plot.name for plot in plots] == ["hardness", "zeta"]
    assert plots[1].lines[0].curve.y == (1, 2)


def test_thin_averages_equal_stretches() -> None:
    curve = Curve(tuple(map(float, range(12))), tuple(map(float, range(0, 24, 2))))
    thinned = thin(curve, 4)
    assert thinned.x == (1, 4, 7, 10)
    assert thinned.y == (2, 8, 14, 20)
    assert thin(curve, 12) is curve


def test_long_journals_are_thinned(make_run: MakeRun) -> None:
    path = make_run("a", journal=None)
    lines = [json.dumps({"event": "train", "step": i, "loss": 1.0}) for i in range(5000)]
    (path / "journal.jsonl").write_text("\n".join(lines))
    plots = training_plots(group_runs(read_runs([path])), "recall@50")
    assert len(plots[0].lines[0].curve) == MAX_POINTS


def test_data_sets_have_plots_of_their_own(make_run: MakeRun) -> None:
    other = run_config("mind", {"name": "in_batch"}, 0)
    other["dataset"] = {"path": "data/else", "checksum": "1"}
    runs = read_runs([make_run("here"), make_run("there", config=other)])
    plots = training_plots(group_runs(runs), "recall@50")
    recalls = [plot for plot in plots if plot.name == "recall"]
    titles = {plot.title for plot in recalls}
    assert titles == {"Validation Recall@50 · toy", "Validation Recall@50 · else"}
    assert all(len(plot.lines) == 1 for plot in recalls)
