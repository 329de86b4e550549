"""Searches on a tiny dataset: interrupted or not, they end alike; what is hopeless is given up."""

import json

import pytest

pytest.importorskip("optuna")

import optuna

from crossbatch.config import Recipe
from crossbatch.data import PrepareOptions, open_dataset, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.errors import ConfigError
from crossbatch.training import fit
from crossbatch.tuning import Choice, Range, Space
from crossbatch.tuning import study as module
from crossbatch.tuning.study import Judge, tune

RECIPE = Recipe.from_dict(
    {
        "model": {"dim": 8, "item_features": []},
        "sampler": {"name": "cross_batch", "capacity": 64, "warmup_steps": 10},
        "train": {
            "batch_size": 32,
            "max_steps": 60,
            "eval_every": 15,
            "lr": 0.01,
            "threads": 1,
            "device": "cpu",
        },
    }
)
SPACE = Space({"train.lr": Range(1e-6, 0.05, log=True), "sampler.capacity": Choice(("64", "128"))})
TRIALS = 7


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("tuning") / "data"
    options = SynthOptions(users=300, items=150, interactions=5000, seed=3)
    prepare(synthetic_source(options), path, PrepareOptions())
    return open_dataset(path)


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """A study that nobody interrupted, and its folder."""
    out = tmp_path_factory.mktemp("study") / "whole"
    return tune(dataset, RECIPE, out, trials=TRIALS, space=SPACE), out


def content(study):
    return [
        (trial.state, trial.params, trial.values, trial.intermediate_values)
        for trial in study.trials
    ]


def test_the_first_trial_is_the_recipe_itself(whole, dataset, tmp_path):
    study, _ = whole
    first = study.trials[0]
    assert first.params == {"train.lr": 0.01, "sampler.capacity": "64"}
    result = fit(dataset, RECIPE, tmp_path / "run", test=False)
    assert first.values == [result["valid"]["recall@50"]]


def test_hopeless_trials_are_pruned_early_and_the_best_is_not(whole):
    study, _ = whole
    pruned = [t for t in study.trials if t.state.name == "PRUNED"]
    assert pruned
    assert all(max(t.intermediate_values) < 60 for t in pruned)
    finished = [t.values[0] for t in study.trials if t.state.name == "COMPLETE"]
    assert study.best_value == max(finished)


def test_a_killed_study_ends_as_one_that_was_not(whole, dataset, tmp_path, monkeypatch):
    """Killed in the middle of a trial, after the study heard of a step that no checkpoint has."""
    honest = Judge.event
    kills = [(1, 30), (4, 15)]

    def killing(self, event, step, fields):
        honest(self, event, step, fields)
        if event == "eval" and kills and (self._trial.number, step) == kills[0]:
            kills.pop(0)
            raise KeyboardInterrupt

    monkeypatch.setattr(Judge, "event", killing)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tune(dataset, RECIPE, tmp_path / "killed", trials=TRIALS, space=SPACE)
    study = tune(dataset, RECIPE, tmp_path / "killed", trials=TRIALS, space=SPACE)
    assert not kills
    assert content(study) == content(whole[0])


def test_more_trials_go_on_where_the_study_stopped(whole, dataset, tmp_path):
    for trials in (2, 5):
        study = tune(dataset, RECIPE, tmp_path / "more", trials=trials, space=SPACE)
    assert content(study) == content(whole[0])[:5]


def test_what_it_leaves_behind(whole, dataset, tmp_path):
    study, out = whole
    rows = json.loads((out / "trials.json").read_text())["rows"]
    assert sorted(row["trial"] for row in rows) == list(range(TRIALS))
    assert rows[0]["trial"] == study.best_trial.number
    assert "Test users were not looked at" in (out / "trials.md").read_text()
    for run in (out / "trials").iterdir():
        assert not (run / "best").exists()
        result = run / "result.json"
        assert not result.exists() or "test" not in json.loads(result.read_text())
    best = Recipe.load(out / "best.toml")
    result = fit(dataset, best, tmp_path / "best", test=False)
    assert result["valid"]["recall@50"] == study.best_value


def test_a_trial_that_diverges_is_failed_and_the_search_goes_on(dataset, tmp_path):
    space = Space({"train.lr": Choice(("0.01", "1e+30"))})
    study = tune(dataset, RECIPE, tmp_path / "study", trials=4, space=space)
    states = {t.params["train.lr"]: t.state.name for t in study.trials}
    assert states == {"0.01": "COMPLETE", "1e+30": "FAIL"}
    assert "| failed |" in (tmp_path / "study" / "trials.md").read_text()


@pytest.mark.parametrize(
    ("recipe", "space", "what"),
    [
        (RECIPE, Space({"train.lr": Range(0.001, 0.1)}), "space"),
        (RECIPE.changed(["train.seed=5"]), SPACE, "recipe"),
    ],
)
def test_another_study_is_refused(whole, dataset, recipe, space, what):
    with pytest.raises(ConfigError, match=f"study of another {what}"):
        tune(dataset, recipe, whole[1], trials=TRIALS, space=space)


def test_a_folder_of_something_else_is_refused(dataset, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="holds no study"):
        tune(dataset, RECIPE, tmp_path, trials=1)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_setting_that_cannot_be_trained_stops_the_search(dataset, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ConfigError("no such thing")

    monkeypatch.setattr(module, "fit", refuse)
    with pytest.raises(ConfigError, match="no such thing"):
        tune(dataset, RECIPE, tmp_path / "study", trials=3)
    (trial,) = optuna.load_study(
        study_name=None, storage=f"sqlite:///{tmp_path / 'study' / 'study.db'}"
    ).trials
    assert trial.state.name == "FAIL"
