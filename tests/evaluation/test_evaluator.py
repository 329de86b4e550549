"""Evaluation against a plain loop over users and items."""

import math

import numpy as np
import pytest
import torch

from crossbatch.evaluation import evaluate, evaluate_recommender, metrics
from crossbatch.evaluation import recommenders as recommenders_module
from crossbatch.evaluation.list_measures import Popularity

from .conftest import ToyTowers, batches_of

NUM_ITEMS = 60
COUNTS = np.concatenate([[0], np.arange(NUM_ITEMS)[::-1] ** 2])  # item 60 is cold


def brute_lists(model, rows, k, exclude_history=False):
    """Rank every item for every user by sorting, one user at a time."""
    lists = []
    with torch.no_grad():
        for history, _ in rows:
            interests = model.users(torch.tensor([history]))[0]
            scores = (model.items(torch.arange(NUM_ITEMS + 1)) @ interests.T).amax(dim=1)
            banned = {0, *history} if exclude_history else {0}
            order = [i for i in scores.argsort(descending=True).tolist() if i not in banned]
            lists.append(order[:k])
    return torch.tensor(lists)


@pytest.fixture(params=[1, 3], ids=["one interest", "three interests"])
def model(request):
    torch.manual_seed(3)
    return ToyTowers(NUM_ITEMS, interests=request.param)


def test_pitfall_25_and_27_metrics_equal_brute_force_over_the_whole_catalogue(
    model, toy_rows, monkeypatch
):
    monkeypatch.setattr(recommenders_module, "ITEM_CHUNK", 7)
    result = evaluate(model, batches_of(toy_rows), item_counts=COUNTS, ks=(5, 20))
    lists = brute_lists(model, toy_rows, 20)
    for name in metrics.METRICS:
        for k in (5, 20):
            function = getattr(metrics, name.replace("map", "average_precision"))
            expected = function(lists, [t for _, t in toy_rows], k)
            np.testing.assert_allclose(result.per_user[f"{name}@{k}"], expected.numpy())
            assert result.means()[f"{name}@{k}"] == pytest.approx(float(expected.mean()))
    assert result.num_users == len(toy_rows)


def test_batching_changes_nothing(model, toy_rows):
    one = evaluate(model, batches_of(toy_rows, 1), item_counts=COUNTS, ks=(10,))
    many = evaluate(model, batches_of(toy_rows, 100), item_counts=COUNTS, ks=(10,))
    assert one.means() == pytest.approx(many.means(), nan_ok=True)


def test_pitfall_26_repeat_target_is_countable_by_default(model):
    """A user whose only target is in the history can still be a hit."""
    rows = [([item], [item]) for item in range(1, NUM_ITEMS + 1)]
    result = evaluate(model, batches_of(rows), item_counts=COUNTS, ks=(NUM_ITEMS,))
    assert result.means()[f"recall@{NUM_ITEMS}"] == 1.0
    assert result.num_users == NUM_ITEMS


def test_pitfall_26_excluded_history_leaves_no_unwinnable_target(model):
    """History items are never listed; targets repeating them are dropped, their users uncounted."""
    rows = [([1, 2], [2, 3]), ([4], [4, 4]), ([5], [6, 5, 6])]
    result = evaluate(
        model, batches_of(rows), item_counts=COUNTS, ks=(NUM_ITEMS,), exclude_history=True
    )
    np.testing.assert_array_equal(result.per_user[f"recall@{NUM_ITEMS}"], [1.0, np.nan, 1.0])
    assert result.num_targets_dropped == 4
    assert result.num_users == 2
    assert result.means()[f"recall@{NUM_ITEMS}"] == 1.0


def test_excluded_history_equals_brute_force(model, toy_rows):
    result = evaluate(
        model, batches_of(toy_rows), item_counts=COUNTS, ks=(10,), exclude_history=True
    )
    lists = brute_lists(model, toy_rows, 10, exclude_history=True)
    targets = [[item for item in t if item not in h] for h, t in toy_rows]
    np.testing.assert_allclose(result.per_user["ndcg@10"], metrics.ndcg(lists, targets, 10).numpy())


def test_pitfall_32_evaluation_leaves_model_and_random_state_untouched(toy_rows):
    model = ToyTowers(NUM_ITEMS, dropout=0.5).train()
    model.frozen.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(11)
    expected_draw = torch.rand(3)
    torch.manual_seed(11)
    evaluate(model, batches_of(toy_rows), item_counts=COUNTS)
    assert torch.equal(torch.rand(3), expected_draw)
    assert model.training
    assert model.dropout.training
    assert not model.frozen.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_modes_are_restored_after_a_failure(toy_rows):
    model = ToyTowers(NUM_ITEMS).train()
    with torch.no_grad():
        model.table.weight[5] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        evaluate(model, batches_of(toy_rows), item_counts=COUNTS)
    assert model.training


def test_random_models_repeat_by_seed(toy_rows):
    class Noisy(ToyTowers):
        def users(self, history, user_ids=None):
            return super().users(history) + torch.randn(len(history), 1, 6)

    model = Noisy(NUM_ITEMS)
    run = [
        evaluate(model, batches_of(toy_rows), item_counts=COUNTS, ks=(20,), seed=seed)
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(run[0].per_user["ndcg@20"], run[1].per_user["ndcg@20"])
    assert (run[0].per_user["ndcg@20"] != run[2].per_user["ndcg@20"]).any()


def test_a_model_need_not_be_a_module(toy_rows):
    class Plain:
        vectors = torch.eye(NUM_ITEMS + 1)

        def users(self, history, user_ids=None):
            return self.vectors[history].sum(dim=1, keepdim=True)

        def items(self, item_ids):
            return self.vectors[item_ids]

    result = evaluate(Plain(), batches_of([([8, 9], [9, 1])]), item_counts=COUNTS, ks=(2,))
    assert result.means()["recall@2"] == 0.5


def test_slices_count_only_targets_of_their_band():
    """Item 60 is cold; a list fixed by hand makes every slice's recall known."""

    def recommend(batch, k, exclude):
        return torch.tensor([[60, 1, 2]]).expand(len(batch.history), 3)

    rows = [([5], [60, 59, 1]), ([5], [2]), ([5], [60, 60])]
    result = evaluate_recommender(
        recommend, batches_of(rows), popularity=Popularity.from_counts(COUNTS), ks=(1, 3)
    )
    cold = result.per_user["cold_recall@3"]
    np.testing.assert_array_equal(cold, [1.0, np.nan, 1.0])
    np.testing.assert_array_equal(result.per_user["head_recall@3"], [1.0, 1.0, np.nan])
    np.testing.assert_array_equal(result.per_user["tail_recall@3"], [0.0, np.nan, np.nan])
    np.testing.assert_array_equal(result.per_user["head_recall@1"], [0.0, 0.0, np.nan])
    means = result.means()
    assert means["cold_recall@3"] == 1.0
    assert math.isnan(means["mid_recall@3"])
    assert means["coverage@3"] == pytest.approx(3 / 60)
    assert means["coverage@1"] == pytest.approx(1 / 60)
    assert means["cold_share@3"] == pytest.approx(1 / 3)
    assert means["head_share@3"] == pytest.approx(2 / 3)
    # Mid-ranks of 60 items without ties: item i has rank (i - 0.5) / 60.
    assert means["popularity_rank@3"] == pytest.approx((59.5 + 0.5 + 1.5) / 3 / 60)


def test_intervals_hold_the_mean_and_progress_counts_users(model, toy_rows):
    done = []
    result = evaluate(
        model, batches_of(toy_rows), item_counts=COUNTS, ks=(20,), on_batch=done.append
    )
    assert sum(done) == len(toy_rows)
    interval = result.intervals()["recall@20"]
    assert interval.value == pytest.approx(result.means()["recall@20"])
    assert interval.low <= interval.value <= interval.high
    assert interval.low < interval.high


def test_list_longer_than_the_catalogue(model, toy_rows):
    result = evaluate(model, batches_of(toy_rows), item_counts=COUNTS, ks=(100,))
    assert result.means()["recall@100"] == 1.0
    assert result.means()["coverage@100"] == 1.0


def test_no_users(model):
    result = evaluate(model, [], item_counts=COUNTS)
    assert result.num_users == 0
    assert result.intervals() == {}


@pytest.mark.parametrize("ks", [(), (0, 20)])
def test_impossible_list_lengths_are_named(model, toy_rows, ks):
    with pytest.raises(ValueError, match="ks must name"):
        evaluate(model, batches_of(toy_rows), item_counts=COUNTS, ks=ks)


def test_counts_of_another_dataset_are_noticed(model):
    with pytest.raises(ValueError, match="item_counts covers 10 items"):
        evaluate(model, batches_of([([1], [40])]), item_counts=COUNTS[:11])
