"""The first minutes: the demo, a recipe to begin with, recipes by name."""

import re
import tomllib

import pytest

from crossbatch.cli import start
from crossbatch.config import Recipe
from crossbatch.recipes import FOLDER, recipe_names

SMALL = ("--set model.dim=8 --set train.max_steps=8 --set train.eval_every=4 --set train.threads=1 "
         "--set train.device=cpu")  # fmt: skip


@pytest.fixture
def small_demo(monkeypatch):
    """The demo with so little data and so few steps that it takes seconds."""
    sizes = "--users 300 --items 150 --interactions 5000"
    changes = {
        "--users 8000 --items 10000 --interactions 160000": sizes,
        "train --data": f"train {SMALL} --set model.name=youtube_dnn --data",
        " --set model.tower.race_seconds=20": "",
        " --set model.tower.first_steps=300 --set train.max_steps=600 --set train.threads=1": "",
        "train --recipe small-batches": f"train --recipe small-batches {SMALL}",
        "{out}/bank --resume": "{out}/bank --set sampler.warmup_steps=2 --resume",
        "popularity,item_knn,rp3beta,als": "popularity",
    }
    commands = dict(start.DEMO)
    for sentence, command in commands.items():
        for before, after in changes.items():
            commands[sentence] = commands[sentence].replace(before, after)
        assert commands[sentence] != command or command.split()[0] not in {"synth", "train"}
    monkeypatch.setattr(start, "DEMO", commands)


@pytest.mark.slow
def test_the_demo_goes_from_a_log_to_a_report_and_can_be_repeated(crossbatch, tmp_path, small_demo):
    done = crossbatch("demo", "here")
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^\$ crossbatch (\w+)", done.stdout, re.MULTILINE)
    assert shown == [command.split()[0] for command in start.DEMO.values()]
    made = {path.name for path in (tmp_path / "here").iterdir()}
    assert made == {"raw", "dataset", "default", "in_batch", "bank", "bundle", "report.html"}
    assert "test recall@50" in done.stdout
    assert (tmp_path / "here" / "report.html").read_text().startswith("<!doctype html>")
    assert crossbatch("demo", "here").returncode == 0


def test_the_demo_stops_where_a_command_fails(crossbatch, tmp_path, monkeypatch):
    monkeypatch.setattr(start, "DEMO", {"One": "doctor --dataset nowhere", "Two": "nonsense"})
    done = crossbatch("demo")
    assert done.returncode != 0
    assert "2/2" not in done.stdout


def test_init_writes_every_key_with_its_default(crossbatch, tmp_path):
    done = crossbatch("init")
    assert done.returncode == 0
    text = (tmp_path / "recipe.toml").read_text()
    assert Recipe.load(tmp_path / "recipe.toml").to_dict() == Recipe().to_dict()

    uncommented = tomllib.loads(re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE))
    for section, config in Recipe().to_dict().items():
        keys = {key for key in config if not isinstance(config[key], dict)}
        assert keys <= uncommented[section].keys()
    loaded, defaults = Recipe.from_dict(uncommented), Recipe()
    assert (loaded.loss, loaded.train) == (defaults.loss, defaults.train)
    assert loaded.sampler == {"name": "auto", "budget": 1.2}
    before_keys = re.findall(r"^(.*)\n#\w+ = ", text.split("[loss]")[1], re.MULTILINE)
    assert before_keys
    assert all(line.startswith("# ") for line in before_keys)  # every key is explained


def test_init_leaves_an_existing_file_alone(crossbatch, tmp_path):
    (tmp_path / "mine.toml").write_text("mine")
    done = crossbatch("init mine.toml")
    assert done.returncode == 2
    assert "mine.toml exists" in done.stderr
    assert (tmp_path / "mine.toml").read_text() == "mine"
    assert crossbatch("init mine.toml --overwrite").returncode == 0
    assert crossbatch("init nowhere/mine.toml").returncode == 2


def test_recipes_have_names():
    names = recipe_names()
    assert {"strong", "demo", "paper/mind-cross_batch"} <= set(names)
    assert len([name for name in names if name.startswith("paper/")]) == 12
    assert Recipe.load("paper/mind-cross_batch").model.name == "mind"
    assert Recipe.load(FOLDER / "demo.toml") == Recipe.load("demo")
    assert Recipe.load() == Recipe()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("storng", "did you mean 'strong'?"),
        ("--recipe ../demo", "neither a file nor the name of a recipe"),
        ("recipes/demo.toml", "'demo' without .toml is the package's own"),
        ("mine.toml", "mine.toml cannot be read: there is no such file\n"),
        ("demo --recipe strong", "two recipes were given"),
    ],
)
@pytest.mark.parametrize("command", ["train", "tune"])
def test_a_recipe_that_does_not_exist_is_one_sentence(
    crossbatch, tmp_path, command, words, message
):
    done = crossbatch(f"{command} {words} --data data --out out")
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
