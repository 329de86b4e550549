import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("optuna")

import optuna

from crossbatch.config import PAPER, Recipe
from crossbatch.errors import ConfigError
from crossbatch.tuning import Choice, Range, Space, default_space, read_space
from crossbatch.tuning.space import toml_value

VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs", "Cc"])), inner, max_size=3
        )
    ),
)


@settings(deadline=None)
@given(VALUES)
def test_a_value_is_read_back_as_it_was(value):
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


def written(tmp_path, text):
    path = tmp_path / "space.toml"
    path.write_text(text)
    return path


SPACE = """
sampler = [{ name = "in_batch" }, { name = "cross_batch", capacity = 64 }]
[train]
lr = { low = 0.001, high = 0.1, log = true }
[model]
normalize = [true, false]
[model.tower]
hidden = { low = 8, high = 16 }
"""


def test_a_space_has_the_shape_of_a_recipe(tmp_path):
    space = read_space(written(tmp_path, SPACE))
    assert space.keys == {
        "sampler": Choice(('{name = "in_batch"}', '{name = "cross_batch", capacity = 64}')),
        "train.lr": Range(0.001, 0.1, log=True),
        "model.normalize": Choice(("true", "false")),
        "model.tower.hidden": Range(8, 16),
    }


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6))
def test_whatever_is_drawn_is_an_override_within_the_space(tmp_path_factory, seed):
    space = read_space(written(tmp_path_factory.mktemp("space"), SPACE))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    trial = study.ask()
    drawn = [f"{key}={each.draw(trial, key)}" for key, each in space.keys.items()]
    recipe = Recipe().changed(drawn)
    assert recipe.sampler in ({"name": "in_batch"}, {"name": "cross_batch", "capacity": 64})
    assert 0.001 <= recipe.train.lr <= 0.1
    assert recipe.model.tower["hidden"] in range(8, 17)


def test_own_values_are_those_in_the_space():
    space = Space(
        {
            "train.lr": Range(0.01, 0.1),
            "train.batch_size": Range(64, 256),
            "loss.q": Choice(('"none"', '"sampler_law"')),
            "model.normalize": Choice(("true",)),
            "model.tower.hidden": Choice(("8",)),
        }
    )
    assert space.own(Recipe.from_dict(PAPER)) == {
        "train.batch_size": 128,
        "loss.q": '"sampler_law"',
    }


@pytest.mark.parametrize("capacity", [2432, 7])
def test_the_default_space_contains_the_recipe(capacity):
    recipe = Recipe.from_dict(
        {
            "sampler": {"name": "cross_batch", "capacity": capacity},
            "model": {"normalize": True},
            "train": {"lr": 0.5},
        }
    )
    space = default_space(recipe)
    assert set(space.own(recipe)) == set(space.keys)
    assert "loss.temperature" in space.keys
    dot_products = Recipe.from_dict(PAPER | {"sampler": {"name": "uniform"}})
    assert set(default_space(dot_products).keys) == {
        "train.lr",
        "model.history_dropout",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("[train", "is not TOML"),
        ("[train]\nlr = 3", "train.lr: expected a list of choices"),
        ("[train]\nlr = []", "train.lr: a list of choices must not be empty"),
        ("[train]\nlr = {low = 1}", "train.lr"),
        ("[train]\nlr = {low = 2, high = 1}", "low < high"),
        ("[train]\nlr = {low = 0, high = 1, log = true}", "low > 0 if log"),
        ('[train]\nlr = {low = "a", high = 1}', "needs numbers"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read_space(written(tmp_path, text))


def test_bug_deep_toml(tmp_path):
    (tmp_path / "space.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="not TOML"):
        read_space(tmp_path / "space.toml")


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
        read_space(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "keys", [{"train.lrr": Range(1, 2)}, {"train.lr": Range(-1.0, 1.0)}, {"trian.lr": Range(1, 2)}]
)
def test_a_space_that_no_recipe_could_have_is_refused(keys):
    with pytest.raises(ConfigError):
        Space(keys).check(Recipe())
