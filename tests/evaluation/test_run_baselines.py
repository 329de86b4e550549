"""Baselines beside a run: which protocol decides, what is measured, and what is kept."""

import json
import shutil

import pytest

from crossbatch.errors import ConfigError
from crossbatch.evaluation import tuned_baselines as module
from crossbatch.evaluation.baselines import BASELINES, Baseline, evaluate_baselines
from crossbatch.evaluation.runs import RunEvaluator
from crossbatch.evaluation.tuned_baselines import measure_baselines
from crossbatch.training import fit

from ..tiny_runs import tiny_dataset, tiny_recipe
from .conftest import ToyDataset

RECIPE = tiny_recipe(
    {"name": "in_batch"},
    train={"lr": 0.001, "max_steps": 20, "eval_every": 10, "eval_users": 15},
)
NAMES = ("popularity", "rp3beta")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return tiny_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    fit(dataset, RECIPE, out)
    return out


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def evaluator(rows, exclude_seen="auto"):
    recipe = RECIPE.changed([f"train.exclude_seen={exclude_seen}"])
    return RunEvaluator(ToyDataset([[1, 2]], 400, rows), recipe)


def test_auto_leaves_seen_items_out_where_hardly_a_target_repeats_one():
    fresh = [([1, 2], [3])] * 99
    few, many = evaluator([*fresh, ([1], [3, 4, 1])]), evaluator([*fresh, ([1], [1])])
    assert few.repeat_share == pytest.approx(1 / 102)
    assert few.exclude_seen
    assert many.repeat_share == pytest.approx(0.01)
    assert not many.exclude_seen
    assert few.decision() == {
        "name": "recall@50",
        "exclude_seen": True,
        "repeat_share": pytest.approx(1 / 102),
    }


def test_a_recipe_can_decide_otherwise():
    rows = [([1], [1]), ([1], [2])]
    assert evaluator(rows, "yes").exclude_seen
    assert not evaluator([([1], [2])], "no").exclude_seen
    with pytest.raises(ConfigError, match="leaves nothing to find"):
        _ = evaluator([([1, 2], [1, 2])], "yes").exclude_seen
    with pytest.raises(ConfigError, match=r"train\.exclude_seen must be one of auto, yes, no"):
        RECIPE.changed(["train.exclude_seen=perhaps"])


def test_metrics_are_those_of_the_baseline_with_its_settings(run, dataset):
    found = measure_baselines([run], "test", names=NAMES)
    assert list(found) == list(NAMES)
    settings = {name: entry["settings"] for name, entry in found.items()}
    assert settings["popularity"] == {}
    assert settings["rp3beta"].keys() == BASELINES["rp3beta"].grid.keys()
    whole = evaluate_baselines(dataset, "test", names=NAMES, settings=settings)
    # The users of the run's journal, by the protocol that chose its best model.
    exclude = RunEvaluator(dataset, RECIPE).exclude_seen
    chosen = evaluate_baselines(
        dataset, "valid", names=NAMES, settings=settings, exclude_history=exclude, max_users=15
    )
    for name, entry in found.items():
        expected = whole[name]
        assert entry["metrics"]["ndcg@50"] == pytest.approx(expected.means()["ndcg@50"])
        assert entry["unseen"]["metrics"]["ndcg@50"] == pytest.approx(
            expected.unseen.means()["ndcg@50"]
        )
        assert entry["value"] == pytest.approx(chosen[name].means()["recall@50"])
        assert 0 <= entry["fit_cpu_seconds"] <= entry["tuning_cpu_seconds"]


def test_what_was_found_is_kept(run, monkeypatch):
    calls = []
    tune = module.tune_baseline

    def counted(dataset, name, **options):
        calls.append(name)
        return tune(dataset, name, **options)

    monkeypatch.setattr(module, "tune_baseline", counted)
    first = measure_baselines([run], "test", names=NAMES)
    assert calls == list(NAMES)
    assert measure_baselines([run], "test", names=NAMES) == first
    other = measure_baselines([run], "valid", names=["rp3beta"])["rp3beta"]
    assert calls == list(NAMES)
    assert other["settings"] == first["rp3beta"]["settings"]
    assert other["metrics"] != first["rp3beta"]["metrics"]
    kept = json.loads((run / "baselines.json").read_text())
    assert kept["baselines"]["rp3beta"]["splits"].keys() == {"test", "valid"}
    # A grid of another release, and a file that was edited, are not used.
    grid = {**BASELINES["rp3beta"].grid, "decay": (0.9, 0.5)}
    monkeypatch.setitem(BASELINES, "rp3beta", Baseline(BASELINES["rp3beta"].make, grid))
    measure_baselines([run], "test", names=NAMES)
    assert calls == [*NAMES, "rp3beta"]
    kept["baselines"]["popularity"]["value"] = 0.9
    (run / "baselines.json").write_text(json.dumps(kept))
    assert measure_baselines([run], "test", names=["popularity"])["popularity"]["value"] != 0.9
    assert calls == [*NAMES, "rp3beta", "popularity"]


def test_other_runs_by_the_same_rules_get_the_same_file(run, trained, dataset, tmp_path):
    twin = shutil.copytree(trained, tmp_path / "twin")
    fit(dataset, RECIPE.changed(["train.metric=ndcg@20"]), tmp_path / "other")
    measure_baselines([run, twin, tmp_path / "other"], "test", names=["popularity"])
    assert (twin / "baselines.json").read_bytes() == (run / "baselines.json").read_bytes()
    assert not (tmp_path / "other" / "baselines.json").exists()


def test_a_baseline_that_cannot_be_had_is_one_sentence(run, monkeypatch):
    monkeypatch.setitem(
        BASELINES, "rp3beta", Baseline(BASELINES["rp3beta"].make, {}, lambda _: "it is too hot")
    )
    said, fits = [], []
    found = measure_baselines(
        [run], "test", names=NAMES, say=said.append, on_fit=lambda *fit: fits.append(fit)
    )
    assert list(found) == ["popularity"]
    assert said == ["it is too hot"]
    assert fits == [("popularity", 1, 1)]


def test_a_folder_that_cannot_be_written_is_said(run, monkeypatch):
    def refuse(path, document):
        raise OSError("read-only")

    monkeypatch.setattr(module, "write_document", refuse)
    said = []
    assert measure_baselines([run], "test", names=["popularity"], say=said.append)
    assert len(said) == 1
    assert "tunes again: read-only" in said[0]


def test_no_baselines_need_nothing(tmp_path):
    assert measure_baselines([tmp_path], "test", names=()) == {}
