"""`crossbatch tune` as a user types it."""

import sys

import pytest
from typer.testing import CliRunner

from crossbatch.cli import app
from crossbatch.config import Recipe
from crossbatch.data import PrepareOptions, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.errors import ConfigError

RECIPE = """
[model]
name = "youtube_dnn"
dim = 8
item_features = []
[sampler]
name = "in_batch"
[train]
batch_size = 16
max_steps = 20
eval_every = 10
threads = 1
device = "cpu"
"""


@pytest.fixture
def folder(tmp_path):
    options = SynthOptions(users=100, items=50, interactions=1500, seed=3)
    prepare(synthetic_source(options), tmp_path / "data", PrepareOptions())
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "space.toml").write_text("[train]\nlr = [0.01, 0.02]\n")
    return tmp_path


def tune(folder, *more):
    where = ["--data", str(folder / "data"), "--out", str(folder / "study")]
    line = ["tune", str(folder / "recipe.toml"), *where, *map(str, more)]
    return CliRunner().invoke(app, line, catch_exceptions=True)


def test_trials_are_printed_and_the_best_is_a_recipe(folder):
    pytest.importorskip("optuna")
    done = tune(folder, "--trials", 2, "--space", folder / "space.toml", "--set", "train.seed=4")
    assert done.exit_code == 0, done.output
    assert "trial 0 complete: recall@50" in done.output
    assert "(best " in done.output
    best = Recipe.load(folder / "study" / "best.toml")
    assert best.train.seed == 4
    assert best.train.lr in (0.01, 0.02)
    again = tune(folder, "--trials", 2, "--space", folder / "space.toml", "--set", "train.seed=4")
    assert again.exit_code == 0
    assert "trial 0" not in again.output  # nothing is left to do


def test_a_search_in_which_all_failed_is_exit_code_one(folder):
    pytest.importorskip("optuna")
    (folder / "space.toml").write_text("[train]\nlr = [1e30]\n")
    done = tune(folder, "--trials", 1, "--space", folder / "space.toml")
    assert done.exit_code == 1
    assert "no trial finished" in done.output


def test_without_optuna_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "crossbatch.tuning.study", raising=False)
    error = tune(folder).exception
    assert isinstance(error, ConfigError)
    assert "tune needs optuna: pip install 'crossbatch[tune]'" in str(error)
    assert not (folder / "study").exists()
