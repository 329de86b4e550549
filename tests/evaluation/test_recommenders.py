"""Both protocols from one search, against lists that a plain loop filters."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.evaluation import evaluate, evaluate_recommender, metrics
from crossbatch.evaluation.list_measures import Popularity
from crossbatch.evaluation.recommenders import Seen

from .conftest import ToyBatch, ToyTowers

NUM_ITEMS = 60
COUNTS = np.concatenate([[0], np.ones(NUM_ITEMS, dtype=np.int64)])


class BatchWithSeen(ToyBatch):
    """A batch that knows more of its users than the history shows."""

    seen: tuple


def batch_of(rows, length=3):
    """One batch of (all items before, targets); only the newest `length` items are shown."""
    history = torch.tensor([(before[-length:] + [0] * length)[:length] for before, _ in rows])
    ends = torch.tensor([0] + [len(targets) for _, targets in rows]).cumsum(0)
    targets = torch.tensor([item for _, targets in rows for item in targets])
    batch = BatchWithSeen(torch.arange(len(rows)), history, targets, ends)
    seen = torch.tensor([item for before, _ in rows for item in before])
    starts = torch.tensor([0] + [len(before) for before, _ in rows]).cumsum(0)
    object.__setattr__(batch, "seen", (seen, starts))
    return batch


class Order:
    """Recommends ids in an order that depends on the newest item shown, and counts its calls."""

    def __init__(self):
        self.calls = []

    def full(self, newest):
        return np.random.default_rng(newest).permutation(NUM_ITEMS) + 1

    def __call__(self, batch, k, exclude):
        self.calls.append((len(batch.history), k, exclude))
        ranked = torch.zeros(len(batch.history), k, dtype=torch.long)
        for row, history in enumerate(batch.history.tolist()):
            banned = set() if exclude is None else set(exclude[row].tolist())
            newest = [item for item in history if item][-1]
            kept = [item for item in self.full(newest).tolist() if item not in banned][:k]
            ranked[row, : len(kept)] = torch.tensor(kept)
        return ranked


rows_of_users = st.lists(
    st.tuples(
        st.lists(st.integers(1, NUM_ITEMS), min_size=1, max_size=55),
        st.lists(st.integers(1, NUM_ITEMS), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(rows=rows_of_users, k=st.integers(1, 30))
def test_both_protocols_equal_filtered_lists(rows, k):
    order = Order()
    popularity = Popularity.from_counts(COUNTS)
    found = evaluate_recommender(order, [batch_of(rows)], popularity=popularity, ks=(k,))
    whole = [order.full(before[-1]).tolist() for before, _ in rows]
    targets = [targets for _, targets in rows]
    expected = metrics.ndcg(torch.tensor(whole)[:, :k], targets, k)
    np.testing.assert_allclose(found.per_user[f"ndcg@{k}"], expected.numpy())

    unseen = [
        [item for item in ids if item not in before]
        for ids, (before, _) in zip(whole, rows, strict=True)
    ]
    padded = torch.tensor([(ids + [0] * k)[:k] for ids in unseen])
    left = [[item for item in targets if item not in before] for before, targets in rows]
    expected = metrics.ndcg(padded, left, k)
    assert found.unseen is not None
    np.testing.assert_allclose(found.unseen.per_user[f"ndcg@{k}"], expected.numpy())
    dropped = sum(map(len, targets)) - sum(map(len, left))
    assert found.unseen.num_targets_dropped == dropped
    alone = evaluate_recommender(
        order, [batch_of(rows)], popularity=popularity, ks=(k,), exclude_history=True
    )
    np.testing.assert_array_equal(alone.per_user[f"ndcg@{k}"], found.unseen.per_user[f"ndcg@{k}"])


def test_only_users_whose_list_runs_short_are_searched_for_again():
    order = Order()
    first_ten = order.full(5)[:10].tolist()
    rows = [([*first_ten, 5], [7]), ([9], [8]), ([12, 13], [14])]
    evaluate_recommender(
        order, [batch_of(rows)], popularity=Popularity.from_counts(COUNTS), ks=(4,)
    )
    assert [(users, k) for users, k, _ in order.calls] == [(3, 6), (1, 4)]
    assert set(order.calls[1][2][0].tolist()) == {*first_ten, 5}


def test_a_second_search_leaves_later_users_their_random_numbers():
    class Noisy(ToyTowers):
        def users(self, history, user_ids=None):
            return super().users(history) + torch.randn(len(history), 1, 6)

    torch.manual_seed(0)
    model = Noisy(NUM_ITEMS)
    everything = list(range(1, NUM_ITEMS - 5))
    long, short = batch_of([(everything, [58])] * 4), batch_of([([3], [7])] * 50)
    batches = [[long, short], [batch_of([([1], [58])] * 4), short]]
    with_again, without = (
        evaluate(model, each, item_counts=COUNTS, ks=(10,)).per_user["recall@10"][4:]
        for each in batches
    )
    np.testing.assert_array_equal(with_again, without)


def test_a_batch_without_seen_has_the_history():
    seen = Seen.of(ToyBatch(torch.arange(2), torch.tensor([[3, 0], [4, 5]]), None, None))
    assert seen.item_ids.tolist() == [3, 4, 5]
    assert seen.offsets.tolist() == [0, 1, 3]
    assert seen.longest == 2
    users = torch.tensor([0, 0, 1, 1])
    assert seen.contains(users, torch.tensor([3, 4, 4, 3])).tolist() == [True, False, True, False]
    assert seen.padded(torch.tensor([1, 0])).tolist() == [[4, 5], [3, 0]]


def test_nobody_has_seen_anything():
    seen = Seen(torch.zeros(0, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    assert seen.longest == 0
    assert not seen.contains(torch.tensor([0, 1]), torch.tensor([1, 2])).any()
    assert seen.padded(torch.tensor([0, 1])).shape == (2, 0)


@pytest.mark.parametrize("users", [0, 3])
def test_one_search_a_batch_where_nothing_was_seen(users):
    order = Order()
    rows = [([item], [item + 1]) for item in range(1, users + 1)]
    batches = [batch_of(rows)] if users else []
    found = evaluate_recommender(order, batches, popularity=Popularity.from_counts(COUNTS), ks=(5,))
    assert len(order.calls) == len(batches)
    assert found.num_users == users
