"""Whole runs: results, exact resume after SIGKILL and Ctrl-C, and what a user may get wrong."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossbatch.errors import ConfigError, DataError
from crossbatch.evaluation import evaluate
from crossbatch.evaluation.runs import evaluate_runs
from crossbatch.models import TwoTower
from crossbatch.reproduce.stability_probe import StabilityProbe
from crossbatch.serving import export_bundle
from crossbatch.serving.from_run import open_recommender
from crossbatch.training import Interrupted, fit
from crossbatch.training.build import build_towers, resolve
from crossbatch.training.run_folder import changed_keys, open_run

from .conftest import RECIPE, recipe_file

TIMES = ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes")


def journal(run, *events):
    entries = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [entry for entry in entries if not events or entry["event"] in events]


def without_times(result):
    return {key: value for key, value in result.items() if key not in TIMES}


@pytest.fixture(scope="module")
def finished(dataset, tmp_path_factory):
    """An undisturbed run of the module's recipe."""
    out = tmp_path_factory.mktemp("run") / "whole"
    return out, RECIPE, fit(dataset, RECIPE, out)


def test_the_folder_holds_what_the_design_says(finished, dataset):
    out, _, result = finished
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "journal.jsonl", "best", "result.json", "per_user"} <= names
    assert json.loads((out / "result.json").read_text()) == result
    assert (result["model"], result["sampler"], result["seed"]) == ("youtube_dnn", "cross_batch", 0)
    assert result["steps"] == 60
    assert result["num_users"] == dataset.num_eval_users("test")
    assert result["num_items"] == dataset.num_items
    for metric in ("recall@20", "recall@50", "hit_rate@20", "ndcg@50", "ndcg_comirec@50"):
        assert 0 <= result["test"][metric] <= 1
        low, high = result["test_ci"][metric]
        assert low <= result["test"][metric] <= high
    steps = [entry["step"] for entry in journal(out, "train")]
    assert steps == list(range(5, 61, 5))
    assert "bank_staleness" in journal(out, "train")[-1]["diagnostics"]
    assert journal(out, "stop")[0]["reason"] == "max_steps"


def test_per_user_files_give_the_reported_means(finished):
    out, _, result = finished
    values = np.load(out / "per_user" / "test_recall@50.npy")
    assert float(np.nanmean(values)) == pytest.approx(result["test"]["recall@50"], abs=1e-6)


@pytest.mark.parametrize(("protocol", "entry", "valid"), [
    ("no", "metrics", "valid"), ("yes", "unseen", "valid_unseen"),
])  # fmt: skip
def test_the_best_model_is_chosen_by_the_protocol_of_the_recipe(
    dataset, tmp_path, protocol, entry, valid
):
    changes = [f"train.exclude_seen={protocol}", "train.eval_every=5", "train.metric=ndcg@20"]
    result = fit(dataset, RECIPE.changed(changes), tmp_path / "run")
    evaluations = journal(tmp_path / "run", "eval")
    assert [each["value"] for each in evaluations] == [
        each[entry]["ndcg@20"] for each in evaluations
    ]
    best = max(evaluations, key=lambda each: each[entry]["ndcg@20"])
    assert result["best_step"] == best["step"]
    assert result[valid]["ndcg@20"] == pytest.approx(best["value"])
    assert result["metric"]["name"] == "ndcg@20"
    assert result["metric"]["exclude_seen"] is (protocol == "yes")


def test_a_result_has_both_protocols(finished, dataset):
    out, _, result = finished
    towers = open_run(out).towers
    for split in ("valid", "test"):
        batches = list(dataset.eval_batches(split))
        found = evaluate(towers, batches, item_counts=dataset.item_counts, exclude_history=True)
        assert result[f"{split}_unseen"]["ndcg@50"] == pytest.approx(found.means()["ndcg@50"])
        assert result[f"{split}_unseen"]["ndcg@50"] != result[split]["ndcg@50"]
    low, high = result["test_unseen_ci"]["recall@50"]
    assert low <= result["test_unseen"]["recall@50"] <= high
    values = np.load(out / "per_user" / "test_unseen_recall@50.npy")
    assert float(np.nanmean(values)) == pytest.approx(result["test_unseen"]["recall@50"], abs=1e-6)
    assert "recall@50" in result["baselines"]["popularity"]["test_unseen"]


def test_evaluations_say_how_much_processor_time_training_took(finished):
    out, _, result = finished
    seconds = [entry["cpu_seconds"] for entry in journal(out, "eval")]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert seconds[-1] == pytest.approx(result["cpu_seconds_per_1000_steps"] * 60 / 1000, abs=1e-3)


@pytest.mark.parametrize(("features", "warned"), [(["*"], True), ([], False)])
def test_late_gradients_for_weights_that_items_share_are_warned_of(
    dataset, tmp_path, features, warned
):
    changes = [f"model.item_features={json.dumps(features)}", "train.max_steps=4"]
    recipe = RECIPE.changed([*changes, 'sampler.item_gradient="deferred"'])
    fit(dataset, recipe, tmp_path / "run", test=False)
    messages = [entry["message"] for entry in journal(tmp_path / "run", "warning")]
    assert any("the items share weights" in message for message in messages) == warned


def test_restored_best_gives_the_best_metric(finished):
    """Pitfall 31: a shallow copy of the best weights keeps training."""
    out, _, result = finished
    evaluations = journal(out, "eval")
    best = max(evaluations, key=lambda entry: entry["value"])
    assert result["best_step"] == best["step"]
    assert result["valid"]["recall@50"] == pytest.approx(best["metrics"]["recall@50"])
    again = evaluate_runs([out], "valid")[str(out)]["metrics"]
    assert again["recall@50"] == pytest.approx(best["metrics"]["recall@50"])


def test_validation_of_some_users_is_theirs_and_the_result_is_of_all(dataset, tmp_path):
    few = replace(RECIPE.train, eval_users=25, max_steps=20)
    result = fit(dataset, replace(RECIPE, train=few), tmp_path / "few")
    (entry,) = journal(tmp_path / "few", "eval")
    assert entry["users"] == 25
    saved = open_run(tmp_path / "few")
    for metrics, max_users in ((entry["metrics"], 25), (result["valid"], None)):
        batches = dataset.eval_batches("valid", max_users=max_users)
        found = evaluate(saved.towers, batches, item_counts=dataset.item_counts)
        assert metrics["recall@50"] == pytest.approx(found.means()["recall@50"])
        assert metrics["ndcg@20"] == pytest.approx(found.means()["ndcg@20"])
    assert entry["metrics"]["recall@50"] != pytest.approx(result["valid"]["recall@50"])


def test_same_seed_same_result_another_seed_another(finished, dataset, tmp_path):
    _, recipe, result = finished
    twin = fit(dataset, recipe, tmp_path / "twin")
    assert without_times(twin) == without_times(result)
    other = fit(dataset, replace(recipe, train=replace(recipe.train, seed=1)), tmp_path / "other")
    assert other["test"] != result["test"]


def start_and_wait(tmp_path, dataset, recipe, out, step, *more):
    """A training process that has taken `step` steps and waits for its stdin to be closed."""
    command = [sys.executable, str(Path(__file__).with_name("waiting_command.py")), str(step), "0"]
    recipe_path = recipe_file(tmp_path / "recipe.toml", recipe)
    command += ["train", str(recipe_path), "--data", str(dataset.path), "--out", str(out)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([*command, "--quiet", *more], text=True, **pipes)
    assert process.stdout.readline() == "waiting\n", process.communicate()[1]
    return process


def kill(process):
    process.kill()
    process.communicate()


def test_sigkill_at_any_moment_then_resume_is_bit_identical(finished, dataset, tmp_path):
    out, recipe, result = finished
    run = tmp_path / "killed"
    for step in (7, 28, 43):  # before the first checkpoint, after it, after the second
        kill(start_and_wait(tmp_path, dataset, recipe, run, step, "--resume"))
        assert not (run / "result.json").exists()
    resumed = fit(dataset, recipe, run, resume=True)
    assert without_times(resumed) == without_times(result)
    losses = [(entry["step"], entry["loss"]) for entry in journal(run, "train")]
    assert losses == [(entry["step"], entry["loss"]) for entry in journal(out, "train")]
    for path in (out / "per_user").iterdir():
        ours, theirs = np.load(run / "per_user" / path.name), np.load(path)
        np.testing.assert_array_equal(ours, theirs)


def test_ctrl_c_saves_and_says_how_to_resume(finished, dataset, tmp_path):
    _, recipe, result = finished
    run = tmp_path / "interrupted"
    process = start_and_wait(tmp_path, dataset, recipe, run, 33)
    process.send_signal(signal.SIGINT)
    message = process.communicate()[1]
    assert process.returncode == 130
    assert "stopped at step 33 and saved" in message
    assert "--resume" in message
    assert "Traceback" not in message
    resumed = fit(dataset, recipe, run, resume=True)
    assert without_times(resumed) == without_times(result)


def test_a_run_for_a_search_never_looks_at_the_test_users(finished, dataset, tmp_path, monkeypatch):
    _, recipe, result = finished
    splits = []
    eval_batches = type(dataset).eval_batches

    def spy(self, split, **options):
        splits.append(split)
        return eval_batches(self, split, **options)

    monkeypatch.setattr(type(dataset), "eval_batches", spy)
    found = fit(dataset, recipe, tmp_path / "run", test=False)
    assert set(splits) == {"valid"}
    assert found["valid"] == result["valid"]
    assert not {"test", "test_ci", "baselines"} & set(found)
    assert not (tmp_path / "run" / "per_user").exists()


def test_a_finished_run_is_not_trained_again(finished, dataset):
    out, recipe, result = finished
    before = (out / "journal.jsonl").read_bytes()
    assert fit(dataset, recipe, out, resume=True) == result
    assert (out / "journal.jsonl").read_bytes() == before


def test_resume_after_early_stopping_does_not_train_further(dataset, recipe, tmp_path, monkeypatch):
    """A run killed after its last evaluation and before its result must end at the same step."""
    impatient = replace(recipe, train=replace(recipe.train, patience=0, lr=1e-9, max_steps=400))
    whole = fit(dataset, impatient, tmp_path / "whole")
    assert whole["steps"] < 400

    def killed(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("crossbatch.training.run.Session.finish", killed)
        with pytest.raises(RuntimeError, match="killed"):
            fit(dataset, impatient, tmp_path / "again")
    resumed = fit(dataset, impatient, tmp_path / "again", resume=True)
    assert without_times(resumed) == without_times(whole)


def test_an_occupied_folder_is_left_alone(finished, dataset):
    out, recipe, _ = finished
    with pytest.raises(ConfigError, match="not empty"):
        fit(dataset, recipe, out)


def test_two_trainings_in_one_folder_are_refused(dataset, recipe, tmp_path):
    run = tmp_path / "run"
    process = start_and_wait(tmp_path, dataset, recipe, run, 1)
    with pytest.raises(ConfigError, match="in use"):
        fit(dataset, recipe, run, resume=True)
    kill(process)


def test_resume_with_another_recipe_is_refused(dataset, recipe, tmp_path):
    run = tmp_path / "run"
    fit(dataset, recipe, run)
    (run / "result.json").unlink()
    changed = replace(recipe, train=replace(recipe.train, lr=0.5))
    with pytest.raises(ConfigError, match=r"train\.lr is 0\.5, but the run .* began with 0\.01"):
        fit(dataset, changed, run, resume=True)


def test_bug_a_finished_run_was_returned_for_another_recipe(finished, dataset):
    out, recipe, _ = finished
    changed = replace(recipe, train=replace(recipe.train, lr=0.5))
    with pytest.raises(ConfigError, match=r"train\.lr is 0\.5, but the run .* began with 0\.01"):
        fit(dataset, changed, out, resume=True)


@contextmanager
def stopped_after(steps, patch):
    """As if Ctrl-C came after so many steps of this session."""
    flags = (iter([*[False] * (steps - 1), *[True] * 9]) for _ in range(9))

    @contextmanager
    def flag(**_):
        answers = next(flags)
        yield lambda: next(answers)

    with patch.context() as patched:
        patched.setattr("crossbatch.training.run.interrupt_flag", flag)
        yield


def test_bug_a_stop_between_two_journal_lines_changed_the_next(
    finished, dataset, tmp_path, monkeypatch
):
    """A line holds the mean loss since the one before, whichever session took the steps."""
    out, recipe, _ = finished
    for steps in (7, 9):
        with stopped_after(steps, monkeypatch), pytest.raises(Interrupted):
            fit(dataset, recipe, tmp_path / "run", resume=True)
    fit(dataset, recipe, tmp_path / "run", resume=True)
    lines = [
        [(entry["step"], entry["loss"]) for entry in journal(run, "train")]
        for run in (out, tmp_path / "run")
    ]
    assert lines[0] == lines[1]


def test_bug_a_stop_within_a_measurement_lost_it(dataset, tmp_path, monkeypatch):
    """Drift looks back ten steps: a run that is stopped within them resumes from before them."""
    recipe = RECIPE.changed(["train.eval_every=40"])

    def probe():
        return StabilityProbe(dataset, recipe)

    fit(dataset, recipe, tmp_path / "whole", probe=probe(), test=False)
    for steps in (4, 18, 43, 49):
        run = tmp_path / f"stopped-{steps}"
        with stopped_after(steps, monkeypatch), pytest.raises(Interrupted):
            fit(dataset, recipe, run, probe=probe(), test=False)
        fit(dataset, recipe, run, probe=probe(), test=False, resume=True)
        assert journal(run, "probe") == journal(tmp_path / "whole", "probe"), steps


def test_diverging_training_stops_and_names_the_batch(dataset, recipe, tmp_path):
    wild = replace(recipe, train=replace(recipe.train, lr=1e30))
    with pytest.raises(ConfigError, match=r"batch \d+ of seed 0"):
        fit(dataset, wild, tmp_path / "run")
    assert journal(tmp_path / "run", "stop")[0]["reason"] == "nan"


def test_open_run_refuses_what_is_none(tmp_path, dataset, finished):
    with pytest.raises(DataError, match="no run folder"):
        open_run(tmp_path)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((finished[0] / "config.json").read_text())
    with pytest.raises(DataError, match="no best model"):
        open_run(broken)


def test_evaluating_a_run_repeats_its_result(finished):
    out, _, result = finished
    (entry,) = evaluate_runs([out], "test").values()
    assert entry["metrics"]["recall@50"] == pytest.approx(result["test"]["recall@50"])
    assert entry["unseen"]["metrics"]["recall@50"] == pytest.approx(
        result["test_unseen"]["recall@50"]
    )
    assert (entry["model"], entry["sampler"]) == ("youtube_dnn", "cross_batch")
    assert entry["metric"] == result["metric"]


def test_a_run_of_an_earlier_version_lacks_keys_whose_defaults_held(recipe, dataset):
    config = resolve(recipe, dataset).to_dict()
    earlier = json.loads(json.dumps(config))
    del earlier["sampler"]["max_staleness"], earlier["train"]["eval_users"]
    assert list(changed_keys(earlier, config)) == []
    config["sampler"]["max_staleness"] = 0.1
    assert list(changed_keys(earlier, config)) == [("sampler.max_staleness", 0.0, 0.1)]


class OwnTowers(TwoTower):
    """The recipe's own towers, negated: their weights fit the recipe's, their scores do not."""

    def items(self, item_ids):
        return -super().items(item_ids)


class OtherTowers(OwnTowers):
    """Another class with the same weights."""


def own_towers(dataset, recipe, kind=OwnTowers):
    towers = build_towers(recipe, dataset)
    towers.__class__ = kind
    return towers


@pytest.fixture(scope="module")
def own_run(dataset, tmp_path_factory):
    """A finished run of towers that the caller passed."""
    out = tmp_path_factory.mktemp("run") / "own"
    recipe = RECIPE.changed(["train.max_steps=20"])
    return out, recipe, fit(dataset, recipe, out, model=own_towers(dataset, recipe))


def test_bug_a_run_of_own_towers_was_opened_with_the_towers_of_its_recipe(own_run, tmp_path):
    out, _, result = own_run
    assert result["model"] == "OwnTowers"
    for use in (
        lambda: open_run(out),
        lambda: evaluate_runs([out], "test"),
        lambda: export_bundle(out, tmp_path / "bundle"),
        lambda: open_recommender(out),
    ):
        with pytest.raises(DataError, match="of class OwnTowers, whose options are not known"):
            use()


def test_a_run_of_own_towers_is_resumed_with_the_same_class_alone(own_run, dataset):
    out, recipe, result = own_run
    with pytest.raises(ConfigError, match=r"class OwnTowers, but no model= was passed"):
        fit(dataset, recipe, out, resume=True)
    other = own_towers(dataset, recipe, OtherTowers)
    with pytest.raises(ConfigError, match="class OwnTowers, but model= is of class OtherTowers"):
        fit(dataset, recipe, out, resume=True, model=other)
    same = own_towers(dataset, recipe)
    assert fit(dataset, recipe, out, resume=True, model=same) == result


def test_a_run_of_a_recipe_is_not_resumed_with_own_towers(finished, dataset):
    out, recipe, _ = finished
    with pytest.raises(ConfigError, match="with the towers of its recipe, but model= is of class"):
        fit(dataset, recipe, out, resume=True, model=own_towers(dataset, recipe))
