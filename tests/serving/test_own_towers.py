"""Towers of foreign code: the same numbers from training, evaluation, bundle and server."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch

from crossbatch.config import Recipe, TrainConfig
from crossbatch.data import PrepareOptions, open_dataset, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.errors import ConfigError, DataError
from crossbatch.evaluation.runs import evaluate_runs
from crossbatch.fitting import fit
from crossbatch.models import allow_code, own_towers
from crossbatch.serving import BundleError, export_bundle, open_bundle
from crossbatch.serving.bundle.change_items import add_items, remove_items
from crossbatch.serving.from_run import open_recommender
from crossbatch.training.run_folder import open_run

from .conftest import TRAIN
from .counted import recall, served_recall
from .server.running import RunningServer

HERE = str(Path(__file__).parent)
TOWERS = "own_shop_towers"
WHOLE = {"user_features": ["*"], "dim": 8, "normalize": False, "history_dropout": 0.0}
MODELS = {
    "subclass": {"model": f"{TOWERS}:Subclass", "options": {"scale": 2.0}},
    "foreign": {"model": f"{TOWERS}:Foreign", "options": {"width": 6}},
    "bert": {"name": "youtube_dnn", "item_tower": f"{TOWERS}:Bert", "item": {"column": "title"}},
    "user tower": {"user_tower": f"{TOWERS}:Attention", "tower": {"heads": 4}},
}


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    """No code is allowed or named, as in a new process; our towers can be imported."""
    monkeypatch.setattr(own_towers, "_packages", set())
    monkeypatch.setattr(own_towers, "_named", {})
    monkeypatch.syspath_prepend(HERE)
    yield
    sys.modules.pop(TOWERS, None)


def recipe(**model):
    train = TRAIN | {"exclude_seen": "no"}
    sampler = {"name": "in_batch"}
    return Recipe.from_dict({"model": WHOLE | model, "sampler": sampler, "train": train})


def forget():
    own_towers._named.clear()
    own_towers._packages.clear()


@pytest.fixture(scope="module")
def runs(shop, tmp_path_factory):
    """A run folder of each model, and its result."""
    sys.path.insert(0, HERE)
    folder, found = tmp_path_factory.mktemp("own"), {}
    for number, (name, model) in enumerate(MODELS.items()):
        features = [] if name != "subclass" else ["*"]
        chosen = recipe(**model, **({} if name == "subclass" else {"user_features": features}))
        found[name] = (folder / str(number), fit(shop, chosen, folder / str(number)))
    sys.path.remove(HERE)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_training_evaluation_bundle_and_server_give_the_same_metrics(runs, shop, tmp_path, name):
    if name == "bert":
        pytest.importorskip("transformers")
    run, result = runs[name]
    forget()
    with pytest.raises(DataError, match=f"--allow-code {TOWERS}"):
        evaluate_runs([run], "test")
    allow_code(TOWERS)
    measured = evaluate_runs([run], "test")[str(run)]["metrics"]
    for metric, value in result["test"].items():
        assert measured[metric] == pytest.approx(value, abs=1e-6), metric
    assert result["test"]["recall@50"] > 0.2
    bundle = export_bundle(run, tmp_path / "bundle")
    forget()
    sys.modules.pop(TOWERS, None)
    opened = open_bundle(bundle.path)  # without any code
    assert TOWERS not in sys.modules
    expected = result["test"]["recall@50"]
    if name == "subclass":  # features of users are no part of a history
        history = shop.item_keys([3, 9, 12])
        features = [{"region": "north", "age": 41}]
        mine = opened.recommend([history], 10, user_features=features)[0]
        allow_code(TOWERS)
        theirs = open_recommender(run).recommend([history], 10, user_features=features)[0]
        assert [item.key for item in mine.items] == [item.key for item in theirs.items]
    else:
        assert recall(opened, shop) == pytest.approx(expected, abs=2e-3)
        if name == "foreign":  # by a process that is not allowed to import it
            with RunningServer(bundle.path) as server:
                assert served_recall(server, shop) == pytest.approx(expected, abs=2e-3)


def test_a_bundle_answers_as_the_model_itself(runs, shop, tmp_path):
    """Against the module in this process, not against anything that the bundle was made with."""
    allow_code(TOWERS)
    run, _ = runs["foreign"]
    model = open_run(run).towers
    bundle = export_bundle(run, tmp_path / "bundle")
    history = torch.tensor([[3, 9, 12], [5, 0, 0]])
    users = model.users(history).detach()
    torch.testing.assert_close(bundle.interests(history), users)
    for size in (1, 9, 17):  # blocks of the fixed size, and parts of one
        rows = torch.randint(1, shop.num_items, (size, 20))
        torch.testing.assert_close(bundle.interests(rows), model.users(rows).detach())


def test_items_are_added_by_the_same_encoder(runs, shop, tmp_path):
    pytest.importorskip("transformers")
    allow_code(TOWERS)
    run, _ = runs["bert"]
    bundle = export_bundle(run, tmp_path / "bundle", graph_formats=())
    title = shop.item_titles([7])[0]
    new = pl.DataFrame({"item": ["new"], "title": [title]})
    forget()
    with pytest.raises(DataError, match=f"no item can be encoded: .*--allow-code {TOWERS}"):
        add_items(bundle, new, tmp_path / "refused")
    allow_code(TOWERS)
    changed = add_items(bundle, new, tmp_path / "more")
    same = changed.item_vectors[changed.item_ids(["new"])[0]]
    torch.testing.assert_close(same, bundle.item_vectors[7], atol=1e-5, rtol=1e-4)


def test_items_of_a_foreign_model_are_removed_and_the_others_answer_as_before(runs, tmp_path):
    allow_code(TOWERS)
    bundle = export_bundle(runs["foreign"][0], tmp_path / "bundle")
    forget()
    changed = remove_items(bundle, bundle.item_keys([1, 50]), tmp_path / "less")
    keys = bundle.item_keys([3, 70, 120])
    before, after = (each.recommend([keys], 30)[0].items for each in (bundle, changed))
    gone = set(bundle.item_keys([1, 50]))
    kept = [(item.key, item.score) for item in before if item.key not in gone]
    found = [(item.key, item.score) for item in after][: len(kept)]
    assert [key for key, _ in kept] == [key for key, _ in found]
    assert [score for _, score in kept] == pytest.approx([score for _, score in found], abs=1e-5)


def test_a_class_or_a_module_with_options_is_recorded(shop, tmp_path):
    import own_shop_towers as mine

    plain = recipe(item_features=[])
    fit(shop, plain, tmp_path / "class", model=mine.Foreign)
    saved = json.loads((tmp_path / "class/config.json").read_text())
    assert saved["model"]["model"] == f"{TOWERS}:Foreign"
    assert saved["own_model"] is None
    assert open_run(tmp_path / "class").towers.gru.hidden_size == 8  # named: no flag is needed
    tables = open_run(tmp_path / "class").dataset
    inputs = own_towers.Inputs(tables.num_items, 8)
    fit(shop, plain, tmp_path / "module", model=mine.Subclass(inputs, scale=3.0))
    assert json.loads((tmp_path / "module/config.json").read_text())["model"]["options"] == {
        "scale": 3.0
    }


def test_towers_whose_code_changed_are_refused(runs, monkeypatch):
    import own_shop_towers as mine

    allow_code(TOWERS)
    open_run(runs["foreign"][0])
    plain = mine.Foreign.items
    monkeypatch.setattr(mine.Foreign, "items", lambda self, ids: -plain(self, ids))
    with pytest.raises(DataError, match="give other vectors than they gave in training"):
        open_run(runs["foreign"][0])


@pytest.mark.parametrize("name", ["NeedsUsers", "OtherUsers"])
def test_a_model_that_a_bundle_cannot_hold_is_refused(shop, tmp_path, name):
    fit(shop, recipe(model=f"{TOWERS}:{name}"), tmp_path / "run")
    with pytest.raises(DataError, match=r"cannot trace the user tower|differ from"):
        export_bundle(tmp_path / "run", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_user_tower_can_be_kept_as_code(runs, tmp_path):
    allow_code(TOWERS)
    run, _ = runs["user tower"]
    bundle = export_bundle(run, tmp_path / "bundle", graph_formats=())
    assert not (bundle.path / "user_program.json").exists()
    history = torch.tensor([[3, 9, 12]])
    expected = open_run(run).towers.users(history).detach()
    torch.testing.assert_close(bundle.interests(history), expected)
    forget()
    with pytest.raises(BundleError, match=f"--allow-code {TOWERS}"):
        open_bundle(bundle.path)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"model": f"{TOWERS}:Nobody"}, "cannot be imported"),
        ({"model": "no_such_package_here:Tower"}, "cannot be imported"),
        ({"model": f"{TOWERS}:NotATower"}, "must be a class of torch.nn.Module"),
        (
            {"model": f"{TOWERS}:Foreign", "options": {"depth": 3}},
            "model.options.depth is no option",
        ),
        ({"item_tower": "bag", "name": "youtube_dnn"}, "unknown item_tower 'bag'"),
        ({"model": f"{TOWERS}:Bert", "options": {"column": "title"}}, "needs a method users"),
        ({"model": "Foreign"}, "must be an import path"),
        ({"model": f"{TOWERS}:Foreign", "name": "mind"}, "leave one out"),
        ({"model": f"{TOWERS}:Foreign", "item": {"id": False}}, "those of model.model are"),
        ({"options": {"width": 3}}, "model.options are those of model.model"),
    ],
)
def test_a_mistake_is_one_sentence(shop, tmp_path, model, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        fit(shop, recipe(**model), tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["user tower", "foreign"])
def test_training_starts_from_an_earlier_model_over_the_same_items(runs, shop, tmp_path, name):
    run, _ = runs[name]
    allow_code(TOWERS)
    short = {"max_steps": 1, "eval_every": 1, "lr": 1e-9}
    later = replace(recipe(**MODELS[name], user_features=[]), train=TrainConfig(**(TRAIN | short)))
    fit(shop, later, tmp_path / "later", start_from=run)
    before = open_run(run).towers.state_dict()
    for key, value in open_run(tmp_path / "later").towers.state_dict().items():
        torch.testing.assert_close(value, before[key], atol=1e-6, rtol=1e-4)
    other = tmp_path / "other"
    source = synthetic_source(SynthOptions(users=300, items=150, interactions=4000, seed=9))
    prepare(source, other, PrepareOptions())
    with pytest.raises(DataError, match="cannot be matched with other items"):
        fit(open_dataset(other), later, tmp_path / "refused", start_from=run)
