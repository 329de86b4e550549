"""Starting from an earlier model: which row goes where, what is refused, and exact resumes."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

from crossbatch.config import ModelConfig, Recipe
from crossbatch.data import Column, PrepareOptions, open_dataset, prepare
from crossbatch.data.dataset.features import read_encoders, read_features, write_features
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.errors import ConfigError, DataError
from crossbatch.evaluation.runs import RunEvaluator
from crossbatch.fitting import read_earlier
from crossbatch.models import MODELS, FeatureTable, TwoTower, build_model
from crossbatch.serving import export_bundle
from crossbatch.training import Interrupted, fit
from crossbatch.training.build import build_towers, resolve
from crossbatch.training.progress import Progress
from crossbatch.training.run_folder import RunFolder, open_run
from crossbatch.training.warm_start import EarlierModel, WarmStart, begin

from .conftest import RECIPE

TIMES = ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes")
SHORT = RECIPE.changed(["train.max_steps=40"])
# What a daily job passes: nothing about the model.
DAILY = Recipe.from_dict({name: SHORT.to_dict()[name] for name in ("sampler", "train")})


@pytest.fixture(scope="module")
def yesterday(dataset, tmp_path_factory):
    """A finished run on the first dataset."""
    out = tmp_path_factory.mktemp("yesterday") / "run"
    fit(dataset, SHORT.changed(["model.tower.hidden=[6]"]), out)
    return out


@pytest.fixture(scope="module")
def today(tmp_path_factory):
    """A dataset with other numbers for the items, fewer and more of them."""
    path = tmp_path_factory.mktemp("today") / "dataset"
    source = synthetic_source(SynthOptions(users=400, items=230, interactions=6000, seed=4))
    prepare(source, path, PrepareOptions())
    return open_dataset(path)


# --- rows, by hand ---


def content(folder, rows):
    """A features folder of items with a category, tags and a price; row 0 is padding."""
    columns = [
        Column("category", "categorical"),
        Column("tags", "multi_valued", separator="|"),
        Column("price", "numeric"),
    ]
    schema = {"category": pl.String, "tags": pl.String, "price": pl.Float64}
    table = pl.DataFrame([(None, None, None), *rows], schema=schema, orient="row")
    write_features(folder / "features" / "items", table, columns, print, padding=1)
    return SimpleNamespace(path=folder)


def over(folder, keys):
    """A dataset of these items as far as a warm start reads one, and its towers."""
    features = {
        name: FeatureTable.from_arrays(each.kind, each.values, each.offsets, each.num_values)
        for name, each in read_features(folder / "features" / "items").items()
    }
    item = {"feature_dims": {"category": 2, "tags": 2}}
    towers = build_model("youtube_dnn", len(keys), 2, item=item, item_features=features)
    whole = ["", *keys]
    find = lambda ids: [whole[i] for i in ids]  # noqa: E731
    return SimpleNamespace(path=folder, num_items=len(keys), item_keys=find), towers


def test_rows_are_matched_by_key_and_by_value(tmp_path):
    content(tmp_path / "old", [("x", "p|q", 1.0), ("x", "p", 2.0), ("y", "p|q", 3.0)])
    content(tmp_path / "new", [("y", "q", 5.0), ("z", "q|r|s", 1.0), ("y", "q", 1.0)])
    _, towers = over(tmp_path / "old", ["a", "b", "c"])
    state = towers.state_dict()
    state["item_tower.table.weight"] = torch.tensor([[0, 0], [1, 2], [3, 4], [5, 6.0]])
    category, tags = (f"item_tower.content.encoders.{n}.embedding.weight" for n in (0, 2))
    state[category] = torch.tensor([[9, 9], [1, 1], [2, 4.0]])  # unknown, x, y
    state[tags] = torch.tensor([[7, 7], [1, 0], [0, 3.0]])  # unknown, p, q
    config = ModelConfig("youtube_dnn", dim=2, item_features=("tags", "category", "price"))
    config = replace(config, user_features=(), context=())
    counts = np.array([0, 1, 3, 0])
    encoders = read_encoders(tmp_path / "old" / "features" / "items")
    earlier = EarlierModel(config, 20, 0.1, state, ["", "a", "b", "c"], counts, encoders, {})
    start = WarmStart("old", earlier.checksum(), earlier.settings(), lambda: earlier)

    dataset, towers = over(tmp_path / "new", ["c", "d", "a"])
    said = start.load_into(towers, dataset)
    found = towers.state_dict()
    # c, then d from the mean (1 * a + 3 * b) / 4, then a; b is gone
    assert found["item_tower.table.weight"].tolist() == [[0, 0], [5, 6], [2.5, 3.5], [1, 2]]
    # unknown, y, then z from the mean of x and y
    assert found[category].tolist() == [[9, 9], [2, 4], [1.5, 2.5]]
    # unknown, q, then r and s from the mean of p and q
    assert found[tags].tolist() == [[7, 7], [0, 3], [0.5, 1.5], [0.5, 1.5]]
    for name, value in state.items():
        if name not in ("item_tower.table.weight", category, tags):
            assert torch.equal(found[name], value), name
    assert "2 items are known to it, 1 are new, 1 of its items are gone" in said


def test_a_feature_of_another_kind_or_none_at_all_is_refused(tmp_path, yesterday, today):
    earlier = read_earlier(yesterday)
    start = WarmStart("old", earlier.checksum(), earlier.settings(), lambda: earlier)
    recipe = resolve(start.applied_to(DAILY), today)
    towers = build_towers(recipe, today)
    copied = tmp_path / "copy"
    shutil.copytree(today.path / "features", copied / "features")
    stub = SimpleNamespace(path=copied, num_items=today.num_items, item_keys=today.item_keys)
    schema = copied / "features" / "items" / "schema.json"
    whole = json.loads(schema.read_text())
    schema.write_text(json.dumps(whole | {"category": whole["category"] | {"encoder": "text"}}))
    with pytest.raises(DataError, match=r"'category' is text in .* but categorical in the model"):
        start.load_into(towers, stub)
    del whole["category"]
    schema.write_text(json.dumps(whole))
    with pytest.raises(DataError, match=r"reads the item feature 'category', but .* has"):
        start.load_into(towers, stub)
    stub.item_keys = lambda ids: [f"other {i}" for i in ids]
    with pytest.raises(DataError, match=r"no item of .* has a key that the model of old knows"):
        start.load_into(towers, stub)


# --- models ---


@pytest.mark.parametrize("name", MODELS)
def test_every_model_starts_where_it_ended(dataset, tmp_path, name):
    """On the same data: the metrics before the first step are those of the earlier run."""
    recipe = SHORT.changed([f"model.name={name}", "train.max_steps=20", "model.history=content"])
    if name == "recent_items":
        recipe = recipe.changed(["loss.learn_temperature=true"])
    result = fit(dataset, recipe, tmp_path / "run")
    export_bundle(tmp_path / "run", tmp_path / "bundle", graph_formats=())
    checksums = set()
    for path in (tmp_path / "run", tmp_path / "bundle"):
        folder = RunFolder(tmp_path / f"next {path.name}", resume=False)
        start = begin(path, folder, read_earlier)
        folder.close()
        resolved = resolve(start.applied_to(DAILY), dataset)
        towers = build_towers(resolved, dataset)
        start.load_into(towers, dataset)
        means = RunEvaluator(dataset, resolved).validate(towers.eval()).means()
        measured = {key: value for key, value in result["valid"].items() if value is not None}
        assert measured["recall@50"] > 0
        assert {key: means[key] for key in measured} == pytest.approx(measured, abs=1e-3)
        before = open_run(tmp_path / "run").towers.state_dict()
        for key, value in towers.state_dict().items():
            torch.testing.assert_close(value, before[key], msg=key)
        checksums.add(start.checksum)
        learned = before.get("user_tower.log_temperature")
        temperature = 1.0 if learned is None else float(learned.exp())
        assert resolved.loss.temperature == pytest.approx(temperature)
    assert len(checksums) == 1


def test_training_on_other_items_takes_the_model_from_before(yesterday, today, tmp_path):
    heard = []
    progress = Progress()
    progress.say = heard.append
    fit(today, DAILY, tmp_path / "run", start_from=yesterday, progress=progress)
    had, now = (
        json.loads((path / "config.json").read_text()) for path in (yesterday, tmp_path / "run")
    )
    for key in ("name", "dim", "history", "normalize", "history_dropout", "tower", "item"):
        assert now["model"][key] == had["model"][key]
    assert now["model"]["item_features"] == list(open_run(yesterday).dataset.item_features)
    assert now["loss"]["temperature"] == 1.0
    assert now["start"]["path"] == str(yesterday.resolve())
    shared = len(set(today.item_keys(range(1, today.num_items + 1))) & known_keys(yesterday))
    assert 0 < shared < today.num_items
    assert any(f"{shared} items are known to it" in sentence for sentence in heard)


def known_keys(run):
    dataset = open_run(run).dataset
    return set(dataset.item_keys(range(1, dataset.num_items + 1)))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.name=gru4rec", "model.name is 'gru4rec', but .* has 'youtube_dnn'"),
        ("model.dim=16", "model.dim is 16, but .* has 8"),
        ("model.tower.hidden=[7]", r"model.tower.hidden is \[7\], but .* has \[6\]"),
        ("model.item.id=false", "model.item.id is False, but .* has True"),
        ('model.item_features=["title"]', "model.item_features is"),
        ("train.history_length=7", "train.history_length is 7, but .* has 20"),
    ],
)
def test_a_recipe_with_another_model_is_refused(yesterday, today, tmp_path, override, message):
    recipe = DAILY.changed([override])
    if "tower" in override:
        recipe = recipe.changed(["model.name=youtube_dnn"])
    with pytest.raises(ConfigError, match=message):
        fit(today, recipe, tmp_path / "run", start_from=yesterday)


def test_a_recipe_that_agrees_is_taken(yesterday):
    earlier = read_earlier(yesterday)
    start = WarmStart("old", earlier.checksum(), earlier.settings(), lambda: earlier)
    same = SHORT.changed(["model.tower.hidden=[6]", 'model.item_features=["*"]'])
    raced = Recipe.from_dict({"model": {"name": "auto", "tower": {"race_seconds": 5.0}}})
    for recipe in (same, raced, DAILY):
        assert start.applied_to(recipe).model == earlier.config
    assert start.applied_to(DAILY.changed(["loss.temperature=0.3"])).loss.temperature == 0.3


# --- what is no model ---


class Own(TwoTower):
    """Towers of a caller's own."""


def test_what_holds_no_model_is_refused_in_a_sentence(dataset, today, tmp_path, yesterday):
    with pytest.raises(DataError, match=r"neither a run folder .* nor a bundle folder"):
        fit(today, DAILY, tmp_path / "run", start_from=tmp_path / "nothing")
    with pytest.raises(DataError, match=r"neither a run folder .* nor a bundle folder"):
        fit(today, DAILY, tmp_path / "run2", start_from=today.path)
    towers = build_towers(resolve(SHORT, dataset), dataset)
    own = Own(towers.item_tower, towers.user_tower)
    with pytest.raises(ConfigError, match=r"start_from= was passed with model="):
        fit(today, SHORT, tmp_path / "run3", model=own, start_from=yesterday)
    fit(dataset, SHORT.changed(["train.max_steps=20"]), tmp_path / "own", model=own)
    with pytest.raises(
        DataError, match=r"was trained with a model of the caller's own, of class Own"
    ):
        fit(today, DAILY, tmp_path / "run4", start_from=tmp_path / "own")
    with pytest.raises(ConfigError, match=r'train.tables is "sharded"'):
        fit(today, DAILY.changed(["train.tables=sharded"]), tmp_path / "run5", start_from=yesterday)


# --- resumes ---


def stop_at(step):
    """A probe that ends training after a step, as Ctrl-C does."""

    def probe(trainer, now):
        if now == step:
            raise Interrupted("stopped")

    return probe


def weights(run):
    return open_run(run).towers.state_dict()


def test_a_resumed_run_is_the_same_to_the_bit(yesterday, today, tmp_path):
    whole = fit(today, DAILY, tmp_path / "whole", start_from=yesterday)
    bundle, out = tmp_path / "bundle", tmp_path / "run"
    export_bundle(yesterday, bundle, graph_formats=())
    for step in (10, 30):  # before and after the first checkpoint
        with pytest.raises(Interrupted):
            fit(today, DAILY, out, start_from=bundle, resume=True, probe=stop_at(step))
    shutil.rmtree(bundle)  # no longer needed
    result = fit(today, DAILY, out, start_from=bundle, resume=True)
    for key in set(whole) - {*TIMES, "start"}:
        assert result[key] == whole[key], key
    assert result["start"]["checksum"] == whole["start"]["checksum"]
    for name, value in weights(out).items():
        assert torch.equal(value, weights(tmp_path / "whole")[name]), name
    assert fit(today, DAILY, out, start_from=bundle, resume=True) == result


def test_a_resume_from_elsewhere_is_refused(dataset, yesterday, today, tmp_path):
    out, other = tmp_path / "run", tmp_path / "other"
    with pytest.raises(Interrupted):
        fit(today, DAILY, out, start_from=yesterday, probe=stop_at(30))
    with pytest.raises(ConfigError, match=r"began from .*: resume it with --from"):
        fit(today, SHORT, out, resume=True)
    fit(dataset, SHORT.changed(["train.seed=1", "train.max_steps=20"]), other)
    with pytest.raises(ConfigError, match=r"holds other weights than those that the run"):
        fit(today, DAILY, out, start_from=other, resume=True)
    with pytest.raises(ConfigError, match=r"began without --from"):
        fit(dataset, SHORT, other, start_from=yesterday, resume=True)
    config = out / "config.json"
    document = json.loads(config.read_text())
    config.unlink()
    with pytest.raises(DataError, match=r"its run began from other weights"):
        fit(today, SHORT.changed(["model.tower.hidden=[6]"]), out, resume=True)
    document["start"]["checksum"] = "0"
    config.write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"was changed: which model the run began from"):
        fit(today, DAILY, out, start_from=yesterday, resume=True)
