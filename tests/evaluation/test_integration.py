"""Real towers and a real dataset folder through the same evaluation."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from crossbatch.data import open_dataset, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.evaluation import evaluate, metrics, paired_difference
from crossbatch.evaluation.baselines import evaluate_baselines
from crossbatch.models import MODELS
from crossbatch.models.build import build_model
from crossbatch.negatives import CrossBatchSoftmax

BOOKS = (
    Path(os.environ.get("CROSSBATCH_DATA", Path(__file__).parents[3] / "shared" / "data"))
    / "amazon2014-book-1m"
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    out = tmp_path_factory.mktemp("synth") / "dataset"
    prepare(synthetic_source(SynthOptions(users=3_000, items=600, interactions=60_000)), out)
    return open_dataset(out)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_evaluated_over_the_whole_catalogue(dataset, name):
    torch.manual_seed(0)
    model = build_model(name, dataset.num_items, dim=8)
    result = evaluate(model, dataset.eval_batches("valid"), item_counts=dataset.item_counts)
    assert result.num_users == dataset.num_eval_users("valid")
    again = evaluate(
        model, dataset.eval_batches("valid", batch_size=1024), item_counts=dataset.item_counts
    )
    assert again.means() == pytest.approx(result.means(), nan_ok=True)
    everything = evaluate(
        model,
        dataset.eval_batches("valid"),
        item_counts=dataset.item_counts,
        ks=(dataset.num_items,),
    )
    assert everything.means()[f"recall@{dataset.num_items}"] == 1.0


def test_metrics_of_a_real_split_equal_the_public_functions(dataset):
    torch.manual_seed(0)
    model = build_model("youtube_dnn", dataset.num_items, dim=8).eval()
    result = evaluate(model, dataset.eval_batches("test"), item_counts=dataset.item_counts)
    lists, targets = [], []
    with torch.no_grad():
        vectors = model.items(torch.arange(1, dataset.num_items + 1))
        for batch in dataset.eval_batches("test", batch_size=7):
            scores = model.users(batch.history, batch.user_ids)[:, 0] @ vectors.T
            lists.append(scores.topk(50, dim=1).indices + 1)
            targets += batch.targets
    expected = metrics.ndcg_comirec(torch.cat(lists), targets, 50)
    np.testing.assert_allclose(result.per_user["ndcg_comirec@50"], expected.numpy())


def test_pitfall_32_evaluation_leaves_the_bank_unchanged(dataset):
    class Training(torch.nn.Module):
        """A model that carries its loss, bank included, as a user's own loop may have it."""

        def __init__(self):
            super().__init__()
            self.towers = build_model("youtube_dnn", dataset.num_items, dim=8)
            self.loss = CrossBatchSoftmax(8, capacity=64, warmup_steps=0)
            self.users, self.items = self.towers.users, self.towers.items

    training = Training().train()
    for _, batch in zip(range(3), dataset.batches(16, seed=0), strict=False):
        u, v = training.towers(batch.history, batch.item_ids, batch.user_ids)
        training.loss(u, v, batch.item_ids)
    before = {name: value.clone() for name, value in training.state_dict().items()}
    evaluate(training, dataset.eval_batches("valid"), item_counts=dataset.item_counts)
    for name, value in training.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(module.training for module in training.modules())


def test_baselines_run_on_a_dataset_folder(dataset):
    results = evaluate_baselines(dataset, "test", ks=(20,))
    assert {r.num_users for r in results.values()} == {dataset.num_eval_users("test")}
    # Sequences of the synthetic log follow topics: neighbours must find more than popularity.
    gain = paired_difference(
        results["item_knn"].per_user["recall@20"], results["popularity"].per_user["recall@20"]
    )
    assert gain.low > 0


@pytest.mark.slow
@pytest.mark.skipif(not BOOKS.is_dir(), reason=f"{BOOKS.name} is not in CROSSBATCH_DATA")
def test_neighbours_are_strong_baselines_on_real_books(tmp_path):
    from crossbatch.data.readers import open_source

    prepare(open_source(BOOKS), tmp_path / "books")
    names = ("popularity", "item_knn", "rp3beta")
    results = evaluate_baselines(open_dataset(tmp_path / "books"), "test", names=names, ks=(50,))
    popularity, knn, walk = (results[name].means()["recall@50"] for name in names)
    assert 0.03 < popularity < 0.06
    assert knn > 2 * popularity
    assert walk > 1.3 * knn
