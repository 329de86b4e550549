"""Export of a run: the bundle answers as the run does and needs nothing else, or is not written."""

import json
import shutil

import numpy as np
import pytest
import torch

from crossbatch.errors import ConfigError, DataError
from crossbatch.retrieval import ExactIndex, IndexFacts
from crossbatch.serving import BundleError, export_bundle, open_bundle
from crossbatch.serving.bundle import export, graph, writing
from crossbatch.serving.from_run import open_recommender, run_profiles, run_recommender
from crossbatch.training.build import build_towers

from ..conftest import trained


def test_a_bundle_scores_as_the_towers_do(content_saved, content_bundle):
    """Truth: the trained towers themselves, with the users' stored features, over all items."""
    batch = next(content_saved.dataset.eval_batches("test", history_length=20))
    with torch.no_grad():
        users = content_saved.towers.users(batch.history, batch.user_ids)
        items = content_saved.towers.items(torch.arange(1, content_saved.dataset.num_items + 1))
        truth = torch.einsum("bkd,nd->bkn", users, items).amax(dim=1)
    profiles = run_profiles(content_saved, batch.user_ids)
    interests = content_bundle.interests(batch.history, profiles)
    found = torch.einsum("bkd,nd->bkn", interests, content_bundle.item_vectors[1:]).amax(dim=1)
    torch.testing.assert_close(found, truth, atol=1e-5, rtol=1e-5)
    unknown = content_bundle.users(batch.history)
    with torch.no_grad():
        torch.testing.assert_close(unknown, content_saved.towers.users(batch.history))


def test_ids_titles_and_counts_equal_the_datasets(id_bundle, shop):
    ids = range(shop.num_items + 1)
    assert id_bundle.item_keys(ids) == shop.item_keys(ids)
    assert id_bundle.item_titles(ids) == shop.item_titles(ids)
    assert np.array_equal(id_bundle.item_counts, shop.item_counts)
    keys = shop.item_keys([5, 1, 199])
    assert id_bundle.item_ids([*keys, "nobody"]).tolist() == [5, 1, 199, 0]


def test_run_and_bundle_recommend_the_same(content_saved, content_bundle, shop):
    histories = [shop.item_keys([3, 9, 12]), shop.item_keys([150])]
    features = [{"region": "north", "age": 41}, None]
    ours = content_bundle.recommend(histories, 10, user_features=features)
    theirs = run_recommender(content_saved).recommend(histories, 10, user_features=features)
    for mine, other in zip(ours, theirs, strict=True):
        assert [item.key for item in mine.items] == [item.key for item in other.items]
        assert [item.interest for item in mine.items] == [item.interest for item in other.items]


def test_a_run_with_towers_of_the_callers_own_is_refused(shop, tmp_path):
    """Even where the weights would fit the recipe's towers, which are not what was trained."""
    run = trained(shop, tmp_path / "run", own_model=build_towers, name="youtube_dnn")
    with pytest.raises(DataError, match="model of the caller's own, of class TwoTower") as caught:
        export_bundle(run, tmp_path / "bundle")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "bundle").exists()
    with pytest.raises(DataError, match="model of the caller's own"):
        open_recommender(run)
    with pytest.raises(BundleError, match="is not a bundle"):  # all that a server opens
        open_bundle(run)


def test_a_bundle_needs_nothing_but_itself(content_run, content_bundle, tmp_path):
    """The run and its dataset are gone, and the bundle has moved."""
    shutil.copytree(content_bundle.path, tmp_path / "moved")
    text = "".join(p.read_text() for p in (tmp_path / "moved").rglob("*.[jm][sd]*"))
    assert str(content_run.parent) not in text, "no path of the exporting machine stays behind"
    moved = open_bundle(tmp_path / "moved")
    assert moved.version == content_bundle.version
    keys = moved.item_keys([1, 2])
    before = content_bundle.recommend([keys], 5, user_features=[{"age": 30}])
    assert moved.recommend([keys], 5, user_features=[{"age": 30}]) == before


def test_the_manifest_records_what_was_checked(content_bundle):
    manifest = content_bundle.manifest
    assert set(manifest["parity"]) == {"users", "tolerance", "user vectors", "scores", "pt2"}
    assert manifest["index"]["name"] == "exact"
    assert manifest["interests"] == content_bundle.num_interests == 3
    assert manifest["items"] == {"count": 200, "trained": 200}
    card = (content_bundle.path / "README.md").read_text()
    for words in ("recall@50", "`mind`, 3 vector(s) of 8 numbers", "200", "pt2", "`region`"):
        assert words in card


def test_the_exported_graph_takes_any_number_of_users(content_saved, content_bundle):
    program = torch.export.load(content_bundle.path / "user_tower.pt2").module()
    batch = next(content_saved.dataset.eval_batches("test", history_length=20))
    tables = run_profiles(content_saved, batch.user_ids).tables  # age numeric, region categorical
    for size in (1, 2, 9):
        history, users = batch.history[:size], batch.user_ids[:size]
        found = program(history, tables["age"].rows(users), tables["region"].rows(users).long())
        with torch.no_grad():
            expected = content_saved.towers.users(history, users)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_onnx_runtime_answers_as_the_towers_do(content_run, content_saved, tmp_path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    export_bundle(content_run, tmp_path / "bundle", graph_formats=["onnx"])
    session = runtime.InferenceSession(str(tmp_path / "bundle" / "user_tower.onnx"))
    assert [entry.name for entry in session.get_inputs()] == ["history", "age", "region"]
    batch = next(content_saved.dataset.eval_batches("test", history_length=20))
    tables = run_profiles(content_saved, batch.user_ids).tables
    for size in (1, 5):
        users = batch.user_ids[:size]
        inputs = {
            "history": batch.history[:size].numpy(),
            "age": tables["age"].rows(users).numpy(),
            "region": tables["region"].rows(users).long().numpy(),
        }
        (found,) = session.run(None, inputs)
        with torch.no_grad():
            expected = content_saved.towers.users(batch.history[:size], users)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_the_same_run_gives_the_same_answers_and_checks_the_version(id_run, id_bundle, tmp_path):
    again = export_bundle(id_run, tmp_path / "again", graph_formats=())
    assert torch.equal(again.item_vectors, id_bundle.item_vectors)
    assert again.manifest["origin"] == id_bundle.manifest["origin"]
    renamed = export_bundle(id_run, tmp_path / "renamed", name="other", graph_formats=())
    assert (renamed.name, id_bundle.name) == ("other", "run")
    assert renamed.version != again.version


def test_an_approximate_index_comes_with_its_recall(id_run, tmp_path):
    pytest.importorskip("faiss")
    bundle = export_bundle(id_run, tmp_path / "b", index="ivf", recall=0.9, graph_formats=())
    facts = bundle.manifest["index"]
    assert facts["name"] == "ivf"
    assert facts["recall"] >= 0.9
    assert not bundle.index.exact
    reopened = open_bundle(tmp_path / "b")
    interests = reopened.users(torch.tensor([[3, 1, 2], [7, 7, 7]]))
    found = reopened.index.search(interests, 5)
    assert (found.item_ids > 0).all()
    # Whatever it finds is scored exactly.
    exact = torch.einsum("bkd,bnd->bn", interests, reopened.item_vectors[found.item_ids])
    torch.testing.assert_close(found.scores, exact)


@pytest.mark.parametrize("part", ["weights", "graph", "index"])
def test_a_bundle_whose_answers_differ_is_not_written(id_run, tmp_path, monkeypatch, part):
    """Each part in turn goes slightly wrong; nothing is left behind."""
    if part == "weights":
        split = export.split_state

        def wrong(pair):
            items, users = split(pair)
            return items, {name: value * 1.001 for name, value in users.items()}

        monkeypatch.setattr(export, "split_state", wrong)
    elif part == "graph":
        right = graph.UserGraph.forward
        monkeypatch.setattr(
            graph.UserGraph, "forward", lambda self, history: 1.001 * right(self, history)
        )
    else:
        facts = IndexFacts("ivf", 1, 50, 0.5, 0.1, 0.1, 9)
        monkeypatch.setattr(
            writing, "choose_index", lambda vectors, *_, **__: (ExactIndex(vectors), facts)
        )
    with pytest.raises(DataError, match=r"differ from the trained model's|finds 0\.5000 of"):
        export_bundle(id_run, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_difference_is_relative_and_refuses_nan_and_other_shapes():
    truth = torch.tensor([100.0, -1.0])
    assert writing.difference("x", truth + 0.001, truth) == pytest.approx(1e-5, rel=0.01)
    for wrong in (truth * 1.001, truth * torch.nan, truth[:1]):
        with pytest.raises(DataError, match="x differ"):
            writing.difference("x", wrong, truth)


def test_an_existing_bundle_is_replaced_only_when_asked(id_run, shop, tmp_path):
    export_bundle(id_run, tmp_path / "b", graph_formats=())
    first = json.loads((tmp_path / "b" / "bundle.json").read_text())["created"]
    with pytest.raises(DataError, match="already exists"):
        export_bundle(id_run, tmp_path / "b")
    export_bundle(id_run, tmp_path / "b", overwrite=True, name="second", graph_formats=())
    assert open_bundle(tmp_path / "b").name == "second"
    assert first
    for other in (shop.path, id_run):  # a slip of --out must not cost a dataset or a run
        with pytest.raises(DataError, match=r"no bundle\.json"):
            export_bundle(id_run, other, overwrite=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"index": "hnsw"}, ConfigError, "index must be one of auto, exact, ivf, got 'hnsw'"),
        ({"recall": 1.5}, ConfigError, r"recall must be in \(0, 1\], got 1.5"),
    ],
)
def test_mistakes_are_named(id_run, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        export_bundle(id_run, tmp_path / "b", graph_formats=(), **options)
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_model_is_refused(tmp_path):
    with pytest.raises(DataError, match="no run folder"):
        export_bundle(tmp_path, tmp_path / "b")
