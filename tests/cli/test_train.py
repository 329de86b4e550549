"""The commands of training as a user types them."""

import errno
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crossbatch.cli import app
from crossbatch.recipes import recipe_names

RECIPE = """
[model]
name = "youtube_dnn"
dim = 8
[sampler]
name = "cross_batch"
capacity = 64
warmup_steps = 10
[train]
batch_size = 32
max_steps = 30
eval_every = 15
log_every = 5
threads = 1
device = "cpu"
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A folder with a dataset and a finished run, made by the commands themselves."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "recipe.toml").write_text(RECIPE)
    synth = "synth --out data --users 300 --items 150 --interactions 5000 --quiet"
    train = "train recipe.toml --data data --out run"
    for command in (synth, train):
        done = subprocess.run(
            [sys.executable, "-m", "crossbatch", *command.split()],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert "test recall@50" in done.stdout
    return folder


def test_evaluate_shows_model_and_baselines(crossbatch, workplace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    done = crossbatch("evaluate", "run", cwd=workplace)
    assert done.returncode == 0, done.stderr
    for word in ("popularity", "item_knn", "rp3beta", "ease", "youtube_dnn", "cross_batch", "R@50"):
        assert word in done.stdout
    for word in ("as in the paper", "without items that the user has had", "alpha", "Fit, CPU s"):
        assert word in done.stdout
    assert "run reached" in done.stdout or "run did not reach" in done.stdout
    assert ("crossbatch[baselines]" in done.stderr) is (find_spec("implicit") is None)


def test_evaluate_takes_the_baselines_that_are_named(crossbatch, workplace):
    done = crossbatch("evaluate", "run", "--json", "--baselines", "popularity", cwd=workplace)
    table = json.loads(done.stdout)
    assert list(table) == ["popularity", "run"]
    assert {"settings", "value", "fit_cpu_seconds"} <= table["popularity"].keys()
    assert list(json.loads(crossbatch(
        "evaluate", "run", "--json", "--baselines", "none", cwd=workplace
    ).stdout)) == ["run"]  # fmt: skip
    done = crossbatch("evaluate", "run", "--baselines", "popularity,luck", cwd=workplace)
    assert done.returncode == 2
    assert "popularity, item_knn, rp3beta, ease, als, got 'luck'" in done.stderr


def test_evaluate_as_json_repeats_the_result(crossbatch, workplace):
    done = crossbatch("evaluate", "run", "--json", "--no-baselines", cwd=workplace)
    table = json.loads(done.stdout)
    result = json.loads((workplace / "run" / "result.json").read_text())
    assert list(table) == ["run"]
    assert table["run"]["metrics"]["recall@50"] == pytest.approx(result["test"]["recall@50"])
    unseen = table["run"]["unseen"]["metrics"]
    assert unseen["recall@50"] == pytest.approx(result["test_unseen"]["recall@50"])


def test_a_model_that_the_data_chooses(crossbatch, workplace, tmp_path):
    """The whole way: train, resume, evaluate and ask what `auto` chose."""
    recipe = RECIPE.replace('name = "youtube_dnn"', 'name = "auto"\ntower = { first_steps = 5 }')
    (tmp_path / "recipe.toml").write_text(recipe)
    train = f"train {tmp_path}/recipe.toml --data data --out {tmp_path}/run"
    done = crossbatch(train, cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert "2 candidates train for 5 steps" in done.stderr
    assert "model chosen: " in done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"]["name"] == result["model"] != "auto"
    assert config["model"]["dim"] == 8
    assert done.stdout.startswith(f"{result['model']} with cross_batch negatives")
    again = crossbatch(f"{train} --resume", cwd=workplace)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    table = json.loads(
        crossbatch(f"evaluate {tmp_path}/run --json --no-baselines", cwd=workplace).stdout
    )[f"{tmp_path}/run"]
    assert table["model"] == result["model"]
    assert table["metrics"]["recall@50"] == pytest.approx(result["test"]["recall@50"])


def test_recommend_for_a_history_and_for_a_test_user(crossbatch, workplace):
    from crossbatch.data import open_dataset

    keys = open_dataset(workplace / "data").item_keys([1, 2])
    done = crossbatch("recommend", "run", "--history", ",".join(keys), "-k", 5, cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert "recommended" in done.stdout
    done = crossbatch("recommend", "run", "--user", 0, cwd=workplace)
    assert done.returncode == 0, done.stderr


def test_unknown_history_items_are_reported_not_fatal(crossbatch, workplace):
    from crossbatch.data import open_dataset

    (key,) = open_dataset(workplace / "data").item_keys([1])
    done = crossbatch("recommend", "run", "--history", f"{key},nonsense", cwd=workplace)
    assert done.returncode == 0
    assert "nonsense" in done.stderr


def test_a_dataset_that_moved_is_found_by_data(crossbatch, workplace, tmp_path):
    shutil.copytree(workplace / "data", tmp_path / "moved")
    shutil.copytree(workplace / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    document = json.loads(config.read_text())
    document["dataset"]["path"] = str(tmp_path / "gone")
    config.write_text(json.dumps(document))
    (tmp_path / "run" / "checksums.json").unlink()  # which hold the config that was
    assert crossbatch("evaluate", "run", "--no-baselines", cwd=tmp_path).returncode == 2
    moved = crossbatch("evaluate", "run", "--no-baselines", "--data", "moved", cwd=tmp_path)
    assert moved.returncode == 0, moved.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train recipe.toml --data data --out run", "not empty"),
        ("train none.toml --data data --out new", "none.toml cannot be read"),
        ("train recipe.toml --data nothing --out new", "nothing"),
        ("train recipe.toml --data data --out new --set train.batchsize=3", "'batch_size'"),
        ("train recipe.toml --data data --out new --set train.eval_every=-1", "eval_every"),
        ("train recipe.toml --data data --out new --set model.name=mnd", "'mind'"),
        ("train recipe.toml --data data --out new --set sampler.capcity=3", "'capacity'"),
        ("train recipe.toml --data data --out new --set sampler.capacity=-3", "got -3"),
        ("train recipe.toml --data data --out new --set model.tower={depth=3}", "depth"),
        ("train recipe.toml --data data --out new --set train.metric=auc", "recall@50"),
        ("train recipe.toml --data data --out new --track comet", "tensorboard"),
        ("evaluate data", "no run folder"),
        ("evaluate run --split train", "split must be one of valid, test"),
        ("recommend run", "either --history"),
        ("recommend run --history nonsense", "no item of the catalogue"),
        ("recommend run --user 99999", "--user must be 0 to"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_two(crossbatch, workplace, arguments, message):
    done = crossbatch(*arguments.split(), cwd=workplace)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("crossbatch: ")]
    assert message in lines[-1]
    assert "Traceback" not in done.stderr
    assert not (workplace / "new" / "result.json").exists()
    shutil.rmtree(workplace / "new", ignore_errors=True)


def test_a_full_disk_is_one_sentence_and_the_run_can_be_resumed(crossbatch, workplace, monkeypatch):
    """The second checkpoint does not fit; after space was made, --resume ends as if it had."""
    from crossbatch import files

    whole = files.write_durably
    written = []

    def full_disk(path, payload):
        written.append(path)
        if len(written) > 5:  # best and the checkpoint of step 15 are two files each
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        whole(path, payload)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_durably", full_disk)
        train = ["train", "recipe.toml", "--data", "data", "--out", "full", "--quiet"]
        done = crossbatch(*train, cwd=workplace)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert crossbatch(*train, "--resume", cwd=workplace).returncode == 0
    results = [json.loads((workplace / n / "result.json").read_text()) for n in ("full", "run")]
    assert results[0]["test"] == results[1]["test"]


def test_help_lists_the_commands_without_importing_torch():
    done = CliRunner().invoke(app, ["--help"])
    for command in ("prepare", "synth", "train", "evaluate", "recommend", "report"):
        assert command in done.output
    code = (
        "import sys, crossbatch.cli; "
        "assert not {'torch', 'polars', 'numpy'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_builds(workplace, name):
    from crossbatch.config import Recipe
    from crossbatch.data import open_dataset
    from crossbatch.training.auto_model import candidates_of
    from crossbatch.training.build import build_sampler, build_towers, resolve

    overrides = ["model.item_features=[]"] if name == "ml-1m" else []
    dataset = open_dataset(workplace / "data")
    recipe = resolve(Recipe.load(name, overrides), dataset)
    auto = recipe.model.name == "auto"
    for each in candidates_of(recipe).values() if auto else [recipe]:
        build_towers(each, dataset)
    if recipe.sampler["name"] != "auto":
        build_sampler(recipe, dataset)
