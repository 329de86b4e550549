from __future__ import annotations

import pytest

from crossbatch.reports import summary
from crossbatch.reports.comparison import compare
from crossbatch.reports.runs import read_runs

from .conftest import MakeRun, run_config, toy_journal


def test_facts_name_the_best_and_the_gain(make_run: MakeRun) -> None:
    runs = read_runs(
        [
            make_run("base", test={"recall@50": 0.10}),
            make_run("ours", sampler="mixed", test={"recall@50": 0.12}),
        ]
    )
    facts = {fact.title: fact for fact in summary.facts(compare(runs), runs)}
    assert facts["Best test Recall@50"].value == "12.00 %"
    assert facts["Best test Recall@50"].detail == "MIND · Mixed (MNS)"
    assert facts["Largest gain over in-batch, Recall@50"].value == "+20.0 %"
    assert facts["Finished runs"].value == "2"
    assert facts["Fastest 1000 steps"].value == "100.0 s"


def test_a_loss_is_not_hidden(make_run: MakeRun) -> None:
    runs = read_runs(
        [
            make_run("base", test={"recall@50": 0.10}),
            make_run("ours", sampler="mixed", test={"recall@50": 0.09}),
        ]
    )
    facts = {fact.title: fact.value for fact in summary.facts(compare(runs), runs)}
    assert facts["Largest gain over in-batch, Recall@50"] == "−10.0 %"


def test_caveats_tell_what_the_table_cannot(make_run: MakeRun) -> None:
    other = run_config("mind", {"name": "in_batch"}, 0)
    other["dataset"] = {"path": "data/else", "checksum": "1"}
    runs = read_runs(
        [
            make_run("base"),
            make_run("short", sampler="mixed", journal=toy_journal([0.1], stop="max_steps")),
            make_run("burst", sampler="uniform", journal=toy_journal([0.1], stop="nan")),
            make_run("going", seed=1, finished=False, journal=toy_journal([0.1], stop=None)),
            make_run("other", config=other),
        ]
    )
    text = "\n".join(summary.caveats(compare(runs), runs))
    assert "going: no result yet" in text
    assert "short reached max_steps" in text
    assert "burst met a loss that is not a number" in text
    assert "4 configurations of 4 ran with fewer than 3 seeds" in text
    assert "keeps no per-user metrics" in text
    assert "2 data sets" in text


@pytest.mark.parametrize(("schedule", "told"), [("constant", True), ("cosine", False)])
def test_the_end_of_a_schedule_is_no_early_end(
    make_run: MakeRun, schedule: str, told: bool
) -> None:
    config = run_config("mind", {"name": "in_batch"}, 0)
    config["train"]["schedule"] = schedule
    runs = read_runs([make_run("a", config=config, journal=toy_journal([0.1], stop="max_steps"))])
    assert ("max_steps" in "\n".join(summary.caveats(compare(runs), runs))) is told


@pytest.mark.parametrize(("warmup", "told"), [(200, True), (199, False), (0, False)])
def test_a_bank_that_was_never_used_is_named(make_run: MakeRun, warmup: int, told: bool) -> None:
    options = {"warmup_steps": warmup}  # the best step is 200
    runs = read_runs([make_run("bank", sampler="cross_batch", options=options)])
    text = "\n".join(summary.caveats(compare(runs), runs))
    assert ("bank tested a model from within the warm-up" in text) is told


def test_nothing_to_say_about_converged_runs_of_three_seeds(make_run: MakeRun) -> None:
    runs = read_runs([make_run(f"s{seed}", seed=seed) for seed in range(3)])
    assert summary.caveats(compare(runs), runs) == []


def test_data_sets_have_no_common_best(make_run: MakeRun) -> None:
    other = run_config("mind", {"name": "in_batch"}, 0)
    other["dataset"] = {"path": "data/else", "checksum": "1"}
    runs = read_runs([make_run("a"), make_run("b", config=other)])
    assert [fact.title for fact in summary.facts(compare(runs), runs)] == ["Finished runs"]


def test_a_warning_of_many_runs_is_shown_once(make_run: MakeRun) -> None:
    def warning(share: float) -> dict[str, object]:
        return {"event": "warning", "step": 5, "message": f"share is {share:.3g}: collapse"}

    paths = [
        make_run(f"s{seed}", seed=seed, journal=[*toy_journal([0.1]), warning(share), warning(2)])
        for seed, share in enumerate((0.91, 3e-5))
    ]
    assert summary.warnings(read_runs(paths)) == ["2 runs, first s0: share is 0.91: collapse"]
    assert summary.warnings(read_runs(paths[1:])) == ["s1: share is 3e-05: collapse"]


def test_models_behind_a_baseline_are_named(make_run: MakeRun) -> None:
    baselines = {"baselines": {"popularity": {"test": {"recall@50": 0.11}}}}
    runs = read_runs(
        [
            make_run("base", test={"recall@50": 0.10}, result=baselines),
            make_run("ours", sampler="mixed", test={"recall@50": 0.12}),
        ]
    )
    (sentence,) = [text for text in summary.caveats(compare(runs), runs) if "Popularity" in text]
    assert "(11.00 %)" in sentence
    assert "MIND · In-batch" in sentence
    assert "Mixed" not in sentence
