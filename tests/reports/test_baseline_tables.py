"""Both protocols and tuned baselines in reports, from hand-made run folders."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from crossbatch.files import sealed
from crossbatch.reports import html, markdown
from crossbatch.reports.baseline_tables import (
    TunedBaseline,
    deciding_metrics,
    deciding_name,
    read_tuned,
    time_to_quality,
)
from crossbatch.reports.comparison import compare
from crossbatch.reports.journal import Journal
from crossbatch.reports.runs import read_run, read_runs

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import MakeRun


def entry(value: float, test: float, unseen: float, **settings: float) -> dict[str, Any]:
    measured = {"metrics": {"recall@50": test}, "unseen": {"metrics": {"recall@50": unseen}}}
    return {
        "settings": settings,
        "value": value,
        "fit_cpu_seconds": 2.5,
        "tuning_cpu_seconds": 30.25,
        "splits": {"test": measured},
    }


def keep(run: Path, baselines: dict[str, Any], **about: Any) -> None:
    document = {"metric": "recall@50", "exclude_seen": True, "baselines": baselines} | about
    (run / "baselines.json").write_text(json.dumps(sealed(document)))


def evaluations(*values: float | None) -> Journal:
    """One every 100 steps, 10 processor seconds each."""
    events = []
    for index, value in enumerate(values, start=1):
        event = {"event": "eval", "step": 100 * index, "cpu_seconds": 10.0 * index}
        events.append(event | ({} if value is None else {"value": value}))
    return Journal(tuple(events))


BASELINES = [
    TunedBaseline("popularity", {}, 0.05, 0.0, 0.0),
    TunedBaseline("rp3beta", {}, 0.2, 2.5, 30.0),
]


def test_time_to_quality_is_that_of_the_first_evaluation_as_good_as_the_best_baseline() -> None:
    sentence = time_to_quality("first", evaluations(0.1, 0.2, 0.3), BASELINES)
    assert sentence == "first reached RP3β (20.00 %) after 20.0 CPU s of training, at step 200"
    sentence = time_to_quality("first", evaluations(0.1, 0.15, 0.12), BASELINES)
    assert sentence == "first did not reach RP3β (20.00 %): its best evaluation has 15.00 %"
    sentence = time_to_quality("first", evaluations(None, None), BASELINES)
    assert sentence is not None
    assert "cannot be compared" in sentence
    assert time_to_quality("first", evaluations(0.1), []) is None


def test_the_deciding_metrics_of_new_and_old_results() -> None:
    old = {"valid": {"recall@50": 0.1}}
    new = {**old, "valid_unseen": {"recall@50": 0.2}, "metric": {"exclude_seen": True}}
    assert deciding_metrics(old) == {"recall@50": 0.1}
    assert deciding_metrics(new) == {"recall@50": 0.2}
    assert deciding_metrics({**new, "metric": {"exclude_seen": False}}) == {"recall@50": 0.1}
    assert deciding_name({"name": "recall@50", "exclude_seen": True}) == "Recall@50 (unseen)"
    assert deciding_name({"metric": "ndcg@20", "exclude_seen": False}) == "NDCG@20"


def test_unseen_metrics_stand_beside_the_papers(make_run: MakeRun) -> None:
    unseen = {"test_unseen": {"recall@50": 0.2, "coverage@50": 0.5}}
    intervals = {"test_unseen_ci": {"recall@50": [0.18, 0.22]}}
    run = read_run(make_run("new", test={"recall@50": 0.1}, result=unseen | intervals))
    assert run.metrics() == {"recall@50": 0.1, "unseen_recall@50": 0.2}
    assert run.interval("unseen_recall@50") == (0.18, 0.22)
    assert run.interval("recall@50") is None
    comparison = compare([run])
    assert comparison.table_metrics == ["recall@50", "ndcg@50", "unseen_recall@50"]
    assert comparison.headline == "recall@50"
    old = read_run(make_run("old", sampler="mixed", test={"recall@50": 0.1}))
    assert old.metrics() == {"recall@50": 0.1}
    text = markdown.render([run, old])
    assert "Recall@50 (unseen)" in text
    assert "| 10.00 | – | 20.00 |" in text
    assert "(unseen) leaves out" in text
    assert "(unseen)" not in markdown.render([old])


def test_gains_of_unseen_metrics_leave_the_users_of_the_others_alone(make_run: MakeRun) -> None:
    """User 3 has no unseen target: NaN in one protocol, counted in the other."""
    nan = float("nan")
    base = {"recall@50": [0.1, 0.2, 0.9], "unseen_recall@50": [0.2, 0.2, nan]}
    better = {"recall@50": [0.2, 0.3, 0.9], "unseen_recall@50": [0.4, 0.4, nan]}
    runs = []
    for name, sampler, values in (("b", "in_batch", base), ("m", "mixed", better)):
        unseen = values["unseen_recall@50"]
        result = {"test_unseen": {"recall@50": sum(unseen[:2]) / 2}}
        path = make_run(name, sampler=sampler, per_user=values, result=result)
        document = json.loads((path / "result.json").read_text())
        del document["test"]["unseen_recall@50"]  # which `make_run` adds for every array
        (path / "result.json").write_text(json.dumps(document))
        runs.append(read_run(path))
    (row,) = [row for row in compare(runs).rows if row.gains]
    assert row.gains["unseen_recall@50"].relative == pytest.approx(1.0)
    assert row.gains["unseen_recall@50"].interval == pytest.approx((1.0, 1.0))
    low, high = row.gains["recall@50"].interval or (0, 0)
    assert low == pytest.approx(0.0)  # a draw of user 3 alone
    assert high == pytest.approx(1.0)  # of user 1 alone


def test_tuned_baselines_have_rows_and_a_table_of_their_own(make_run: MakeRun) -> None:
    path = make_run("first", test={"recall@50": 0.1})
    popular = {"popularity": entry(0.03, 0.02, 0.025)}
    keep(path, popular | {"rp3beta": entry(0.07, 0.19, 0.2, alpha=0.4, decay=0.9)})
    (run,) = runs = read_runs([path])
    assert run.baselines["rp3beta"] == {"recall@50": 0.19, "unseen_recall@50": 0.2}
    assert [row.label for row in compare(runs).rows][:2] == ["Popularity", "RP3β"]
    text = markdown.render(runs)
    assert "| RP3β | alpha 0.4, decay 0.9 | 7.00 | 2.5 | 30.2 |" in text
    assert "Recall@50 (unseen)" in text
    assert "RP3β has a higher test Recall@50 (19.00 %)" in text
    page = html.render(runs, path / "report.html")
    for word in ("alpha 0.4, decay 0.9", "30.2", "first cannot be compared with RP3β"):
        assert word in page


@pytest.mark.parametrize(
    "baselines",
    [
        {"rp3beta": 3},
        {"rp3beta": {"settings": [1], "splits": {"test": {"metrics": "all"}}}},
        {"rp3beta": {"settings": {"alpha": "x"}, "value": None}},
        ["rp3beta"],
    ],
)
def test_baselines_of_another_shape_are_left_out(make_run: MakeRun, baselines: Any) -> None:
    path = make_run("first")
    keep(path, baselines)
    (run,) = runs = read_runs([path])
    assert run.baselines == {}
    assert "Tuned baselines" not in markdown.render(runs)
    assert html.render(runs, path / "report.html")


def test_a_changed_or_broken_file_gives_a_note(make_run: MakeRun) -> None:
    changed, broken = make_run("changed"), make_run("broken")
    keep(changed, {"rp3beta": entry(0.07, 0.19, 0.2)})
    document = json.loads((changed / "baselines.json").read_text())
    document["baselines"]["rp3beta"]["value"] = 0.9
    (changed / "baselines.json").write_text(json.dumps(document))
    (broken / "baselines.json").write_text("{")
    for path in (changed, broken):
        run = read_run(path)
        assert read_tuned(run.baselines_file.get("baselines", {})) == []
        assert any("baselines were left out" in note for note in run.notes)
