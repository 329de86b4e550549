"""Towers that read titles, from prepare to a served index: the same numbers everywhere."""

import json
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from crossbatch.config import Recipe
from crossbatch.data import PrepareOptions, open_dataset, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.errors import ConfigError, DataError
from crossbatch.evaluation.runs import evaluate_runs
from crossbatch.fitting import fit
from crossbatch.serving import BundleError, export_bundle, open_bundle
from crossbatch.serving.bundle.change_items import add_items
from crossbatch.training.progress import Progress
from crossbatch.training.run_folder import open_run

from .conftest import TRAIN
from .counted import recall, served_recall
from .server.running import RunningServer

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Generated titles as token ids of a tokenizer that was trained on them."""
    path = tmp_path_factory.mktemp("text_shop") / "dataset"
    source = synthetic_source(SynthOptions(users=400, items=200, interactions=6000, seed=3))
    columns = tuple(
        replace(column, kind="tokens") if column.kind == "text" else column
        for column in source.item_columns
    )
    prepare(replace(source, item_columns=columns), path, PrepareOptions(cold_items=0.05))
    return open_dataset(path)


@pytest.fixture(scope="module")
def encoder(shop, tmp_path_factory):
    """A tiny BERT with random weights, and the tokenizer of the dataset."""
    folder = tmp_path_factory.mktemp("encoder")
    stored = next((shop.path / "features/items").glob("*.tokenizer.json"))
    shutil.copyfile(stored, folder / "tokenizer.json")
    config = transformers.BertConfig(
        vocab_size=shop.item_features["title"].num_values,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    torch.manual_seed(5)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def recipe(item_tower, *, train=None, features=("title", "category"), **item):
    model = {
        "name": "youtube_dnn",
        "item_tower": item_tower,
        "item": item,
        "item_features": list(features),
        "user_features": [],
        "dim": 8,
    }
    train = TRAIN | {"exclude_seen": "no"} | (train or {})
    return Recipe.from_dict({"model": model, "sampler": {"name": "in_batch"}, "train": train})


SMALL = {"width": 16, "heads": 2, "layers": 1}


@pytest.fixture(scope="module")
def runs(shop, encoder, tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("text_runs"), {}
    slow = {"lr_of": {"item_tower.encoder": 1e-3}, "warmup_steps": 5, "clip_norm": 5.0}
    recipes = {
        "text_transformer": recipe("text_transformer", train=slow, **SMALL),
        "huggingface": recipe("huggingface", train=slow, model=str(encoder), frozen_layers=1),
        "frozen": recipe("huggingface", model=str(encoder), frozen_layers=-1, id=False),
        "bfloat16": recipe("text_transformer", train={"precision": "bfloat16"}, **SMALL),
    }
    for name, each in recipes.items():
        found[name] = (folder / name, fit(shop, each, folder / name))
    return found


@pytest.mark.parametrize("name", ["text_transformer", "huggingface", "frozen", "bfloat16"])
def test_training_evaluation_bundle_and_server_give_the_same_metrics(runs, shop, tmp_path, name):
    run, result = runs[name]
    measured = evaluate_runs([run], "test")[str(run)]["metrics"]
    for metric, value in result["test"].items():
        assert measured[metric] == pytest.approx(value, abs=1e-6), metric
    assert result["test"]["recall@50"] > 0.2
    bundle = export_bundle(run, tmp_path / "bundle", graph_formats=())
    opened = open_bundle(bundle.path)
    expected = result["test"]["recall@50"]
    assert recall(opened, shop) == pytest.approx(expected, abs=2e-3)
    if name == "huggingface":
        with RunningServer(bundle.path) as server:
            assert served_recall(server, shop) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("name", ["text_transformer", "huggingface", "frozen"])
def test_items_are_added_by_the_same_encoder_and_nothing_else(runs, shop, encoder, tmp_path, name):
    """A new item with the content of item 7, without its id; the encoder's folder is not needed."""
    bundle = export_bundle(runs[name][0], tmp_path / "bundle", graph_formats=())
    hidden = encoder.rename(encoder.with_name("away"))
    try:
        content = {"item": ["new"], "title": [shop.item_titles([7])[0]]}
        changed = add_items(bundle, pl.DataFrame(content), tmp_path / "more")
    finally:
        hidden.rename(encoder)
    towers = open_run(runs[name][0]).towers
    mine = changed.item_vectors[changed.item_ids(["new"])[0]]
    # By hand: the text of item 7, the mean id row, no other content.
    tower = towers.item_tower
    parts = []
    if tower.table is not None:
        counts = torch.from_numpy(np.array(shop.item_counts)).double()
        mean = (counts[1:] / counts[1:].sum()) @ tower.table.weight[1:].detach().double()
        parts.append(mean.float().unsqueeze(0))
    parts.append(tower.content.encoders[0].embedding(torch.tensor([0])))  # an unknown category
    parts.append(tower.encoder(torch.tensor([7])))
    expected = tower.layers(torch.cat(parts, dim=1))
    expected = torch.nn.functional.normalize(expected, dim=1)[0].detach()
    torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-4)


def test_the_rates_of_the_encoder_and_of_the_rest(runs, encoder, shop):
    """A frozen layer keeps its weights, the layer above it moves little, new layers move."""
    before = transformers.AutoModel.from_pretrained(encoder).state_dict()
    towers = open_run(runs["huggingface"][0]).towers
    after = towers.item_tower.encoder.states.model.state_dict()
    moved = {name: float((after[name] - value).abs().max()) for name, value in before.items()}
    below = {n: m for n, m in moved.items() if n.startswith(("embeddings", "encoder.layer.0"))}
    assert set(below.values()) == {0.0}
    above = [m for n, m in moved.items() if n.startswith("encoder.layer.1") and "key.bias" not in n]
    assert min(above) > 0
    assert max(above) < 40 * 1e-3 * 1.5  # steps times the rate


def test_as_many_new_items_as_were_trained_get_no_trained_ids(runs, shop, tmp_path):
    """Weights with a row for each item are told by their number, which is then ambiguous."""
    bundle = export_bundle(runs["text_transformer"][0], tmp_path / "bundle", graph_formats=())
    title = shop.item_titles([7])[0]
    keys = [f"new{n}" for n in range(shop.num_items)]
    same = pl.DataFrame({"item": keys, "title": [title] * len(keys)})
    changed = add_items(bundle, same, tmp_path / "more")
    vectors = changed.item_vectors[changed.item_ids(keys)]
    torch.testing.assert_close(vectors, vectors[:1].expand_as(vectors))


def test_evaluation_says_how_far_the_encoding_is(shop, tmp_path, monkeypatch):
    from crossbatch.evaluation import recommenders

    class Seen(Progress):
        def __init__(self):
            self.done = []

        def items(self, done, total):
            self.done.append((done, total))

    monkeypatch.setattr(recommenders, "EXPENSIVE_CHUNK", 64)
    seen = Seen()
    short = {"max_steps": 2, "eval_every": 2}
    fit(shop, recipe("text_transformer", train=short, **SMALL), tmp_path / "run", progress=seen)
    n = shop.num_items
    assert seen.done[:4] == [(64, n), (128, n), (192, n), (n, n)]


def test_a_run_resumes_exactly(shop, encoder, tmp_path):
    short = {"max_steps": 6, "eval_every": 3}
    options = {"model": str(encoder), "train": short | {"lr_of": {"item_tower.encoder": 1e-3}}}
    whole = fit(shop, recipe("huggingface", **options), tmp_path / "whole")
    options["train"] |= {"max_steps": 3}
    fit(shop, recipe("huggingface", **options), tmp_path / "half")
    (tmp_path / "half/result.json").unlink()
    (tmp_path / "half/checksums.json").unlink(missing_ok=True)
    options["train"] |= {"max_steps": 6}
    resumed = fit(shop, recipe("huggingface", **options), tmp_path / "half", resume=True)
    assert resumed["test"] == whole["test"]


def test_training_starts_from_an_earlier_text_tower(runs, shop, tmp_path):
    run, _ = runs["text_transformer"]
    short = {"max_steps": 1, "eval_every": 1, "lr": 1e-9}
    later = recipe("text_transformer", train=short, **SMALL)
    fit(shop, later, tmp_path / "later", start_from=run)
    before, after = open_run(run).towers.state_dict(), open_run(tmp_path / "later").towers
    for name, value in after.state_dict().items():
        torch.testing.assert_close(value, before[name], atol=1e-6, rtol=1e-4)
    wider = recipe("text_transformer", train=short, **(SMALL | {"width": 32}))
    with pytest.raises(ConfigError, match=r"model\.item\.width is 32"):
        fit(shop, wider, tmp_path / "wider", start_from=run)


def test_mistakes_are_one_sentence(shop, encoder, tmp_path):
    with pytest.raises(ConfigError, match="must be the folder of a Hugging Face encoder"):
        fit(shop, recipe("huggingface", model=str(tmp_path)), tmp_path / "a")
    other = shutil.copytree(encoder, tmp_path / "other")
    (other / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="has the token ids of another tokenizer than"):
        fit(shop, recipe("huggingface", model=str(other)), tmp_path / "b")
    with pytest.raises(ConfigError, match="needs a feature of token ids"):
        fit(shop, recipe("text_transformer", features=["category"]), tmp_path / "c")
    with pytest.raises(ConfigError, match=r"model\.item\.depth is no option of text_transformer"):
        fit(shop, recipe("text_transformer", depth=3), tmp_path / "d")
    wrong = {"lr_of": {"item_tower.encode": 1.0}}
    with pytest.raises(ConfigError, match=r"train\.lr_of names 'item_tower\.encode'"):
        fit(shop, recipe("text_transformer", train=wrong, **SMALL), tmp_path / "e")
    assert not list((tmp_path / "a").glob("best"))


def test_a_forged_encoder_config_is_refused_before_memory_is_taken(runs, tmp_path):
    bundle = export_bundle(runs["huggingface"][0], tmp_path / "bundle", graph_formats=())
    path = bundle.path / "config.json"
    config = json.loads(path.read_text())
    config["model"]["item"]["config"]["hidden_size"] = 1 << 20
    path.write_text(json.dumps(config))
    new = pl.DataFrame({"item": ["new"], "title": ["red"]})
    with pytest.raises((BundleError, DataError)):
        add_items(open_bundle(bundle.path, verify=False), new, tmp_path / "more")
