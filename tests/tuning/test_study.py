"""Searches on a tiny dataset: interrupted ones end like others, and bad trials are pruned."""

import json

import pytest

pytest.importorskip("optuna")

import optuna
from sqlalchemy.pool import NullPool

from crossbatch.config import Recipe
from crossbatch.errors import ConfigError, DataError
from crossbatch.training import fit
from crossbatch.tuning import Choice, Range, Space
from crossbatch.tuning import study as module
from crossbatch.tuning.study import PruningTracker, tune, write_outcome

from ..tiny_runs import tiny_dataset, tiny_recipe

RECIPE = tiny_recipe(
    {"name": "cross_batch", "capacity": 64, "warmup_steps": 10},
    train={"sample_by": "user", "max_steps": 60, "eval_every": 15, "lr": 0.01},
    item_features=[],
)
SPACE = Space({"train.lr": Range(1e-6, 0.05, log=True), "sampler.capacity": Choice(("64", "128"))})
TRIALS = 7
LEARNING_RATES = tuple(str(rate / 1000) for rate in range(1, 99))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return tiny_dataset(tmp_path_factory.mktemp("tuning") / "data", 300, 150, 5000)


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """An uninterrupted study and its folder."""
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
    decided = "valid_unseen" if result["metric"]["exclude_seen"] else "valid"
    assert first.values == [result[decided]["recall@50"]]


def test_bad_trials_are_pruned_early_and_the_best_is_not(whole):
    study, _ = whole
    pruned = [t for t in study.trials if t.state.name == "PRUNED"]
    assert pruned
    assert all(max(t.intermediate_values) < 60 for t in pruned)
    finished = [t.values[0] for t in study.trials if t.state.name == "COMPLETE"]
    assert study.best_value == max(finished)


def test_a_killed_study_ends_as_one_that_was_not(whole, dataset, tmp_path, monkeypatch):
    """Killed in the middle of a trial, after the study heard of a step that no checkpoint has."""
    original = PruningTracker.event
    kills = [(1, 30), (3, 45)]

    def killing(self, event, step, fields):
        original(self, event, step, fields)
        if event == "eval" and kills and (self._trial.number, step) == kills[0]:
            kills.pop(0)
            raise KeyboardInterrupt

    monkeypatch.setattr(PruningTracker, "event", killing)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tune(dataset, RECIPE, tmp_path / "killed", trials=TRIALS, space=SPACE)
    study = tune(dataset, RECIPE, tmp_path / "killed", trials=TRIALS, space=SPACE)
    assert not kills
    assert content(study) == content(whole[0])


def test_bug_a_kill_between_two_draws_changed_the_second(dataset, tmp_path, monkeypatch):
    """What is drawn after a kill must not depend on what was drawn before it."""
    count, kills = iter(range(99)), {3, 4, 11}  # two values a trial; a killed one draws again
    draw = Choice.draw

    def killed(self, trial, key):
        if next(count) in kills:
            raise RuntimeError("killed")
        return draw(self, trial, key)

    two = Space({"sampler.capacity": Choice(("64", "128")), "train.lr": Choice(LEARNING_RATES)})
    quick = RECIPE.changed(["train.max_steps=15"])
    study = tune(dataset, quick, tmp_path / "whole", trials=5, space=two)
    with monkeypatch.context() as patch:
        patch.setattr(Choice, "draw", killed)
        for _ in kills:
            with pytest.raises(RuntimeError, match="killed"):
                tune(dataset, quick, tmp_path / "again", trials=5, space=two)
    again = tune(dataset, quick, tmp_path / "again", trials=5, space=two)
    assert content(again) == content(study)


def test_bug_a_kill_before_the_database_made_the_folder_unusable(dataset, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / ".lock").touch()
    quick = RECIPE.changed(["train.max_steps=15"])
    assert len(tune(dataset, quick, tmp_path / "study", trials=1, space=SPACE).trials) == 1


def test_bug_a_kill_after_a_trial_left_its_weights(dataset, tmp_path, monkeypatch):
    quick = RECIPE.changed(["train.max_steps=15"])
    with monkeypatch.context() as patch:
        patch.setattr(module, "_drop_weights", lambda *_: None)
        tune(dataset, quick, tmp_path / "study", trials=1, space=SPACE)
    assert (tmp_path / "study/trials/000/best").is_dir()
    tune(dataset, quick, tmp_path / "study", trials=1, space=SPACE)
    assert not (tmp_path / "study/trials/000/best").exists()


def test_bug_a_damaged_database_is_one_sentence(dataset, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.db").write_bytes(b"no database" * 1000)
    with pytest.raises(DataError, match=r"study\.db cannot be read or written \(.*not a database"):
        tune(dataset, RECIPE, tmp_path / "study", trials=1, space=SPACE)


def test_more_trials_continue_where_the_study_stopped(whole, dataset, tmp_path):
    for trials in (2, 5):
        study = tune(dataset, RECIPE, tmp_path / "more", trials=trials, space=SPACE)
    assert content(study) == content(whole[0])[:5]


def test_what_it_leaves_behind(whole, dataset, tmp_path):
    study, out = whole
    rows = json.loads((out / "trials.json").read_text())["rows"]
    assert sorted(row["trial"] for row in rows) == list(range(TRIALS))
    assert rows[0]["trial"] == study.best_trial.number
    assert "Test users were not evaluated" in (out / "trials.md").read_text()
    for run in (out / "trials").iterdir():
        assert not (run / "best").exists()
        result = run / "result.json"
        assert not result.exists() or "test" not in json.loads(result.read_text())
    text = (out / "best.toml").read_text()
    assert text.startswith(f"# The best of {TRIALS} trials: number {study.best_trial.number}, ")
    best = Recipe.load(out / "best.toml")
    assert best == RECIPE.changed(study.best_trial.user_attrs["overrides"])
    result = fit(dataset, best, tmp_path / "best", test=False)
    assert result["valid"]["recall@50"] == study.best_value


def test_a_trial_that_diverges_is_failed_and_the_search_continues(dataset, tmp_path):
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
    (tmp_path / "letter.txt").write_text("text")
    with pytest.raises(ConfigError, match="holds no study"):
        tune(dataset, RECIPE, tmp_path, trials=1)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_model_that_is_yet_to_be_chosen_is_refused(dataset, tmp_path):
    with pytest.raises(ConfigError, match=r'model\.name is "auto", and each trial .* train once'):
        tune(dataset, RECIPE.changed(["model.name=auto"]), tmp_path / "study", trials=1)
    assert not (tmp_path / "study").exists()


def test_a_setting_that_cannot_be_trained_stops_the_search(dataset, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ConfigError("no such thing")

    monkeypatch.setattr(module, "fit", refuse)
    with pytest.raises(ConfigError, match="no such thing"):
        tune(dataset, RECIPE, tmp_path / "study", trials=3)
    address = f"sqlite:///{tmp_path / 'study' / 'study.db'}"
    storage = optuna.storages.RDBStorage(address, engine_kwargs={"poolclass": NullPool})
    (trial,) = optuna.load_study(study_name=None, storage=storage).trials
    assert trial.state.name == "FAIL"


def test_every_kind_of_setting_survives_best_toml(tmp_path):
    recipe = Recipe.from_dict(
        {
            "model": {"name": "mind", "tower": {"interests": 4}, "item_features": ["title"]},
            "sampler": {"name": "cross_batch", "capacity": 64, "item_gradient": "balanced"},
            "train": {"lr": 1e-05},
        }
    )
    study = optuna.create_study(direction="maximize")
    trial = study.ask()
    trial.set_user_attr("overrides", [])
    study.tell(trial, 0.5)
    write_outcome(study, recipe, tmp_path)
    assert Recipe.load(tmp_path / "best.toml") == recipe
