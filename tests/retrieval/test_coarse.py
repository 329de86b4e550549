"""Search by coarse scores: the lists are those of a float64 definition, whatever the vectors."""

import pytest
import torch

from crossbatch.queries import Queries
from crossbatch.retrieval import ExactIndex, coarse
from crossbatch.retrieval.coarse import CoarseScores

ITEMS, USERS, K, DIM, LENGTH = 5_000, 24, 6, 32, 20


@pytest.fixture(autouse=True)
def _on_any_processor(monkeypatch):
    monkeypatch.setattr(coarse, "_multiplies_bfloat16", lambda: True)


@pytest.fixture(params=["interests", "queries"])
def users(request):
    """Interests `[B, K, d]`, or the same as weighted queries, one of them missing."""

    def make(vectors):
        if request.param == "interests":
            return vectors
        weights = torch.linspace(0, -2, vectors.shape[1]).repeat(len(vectors), 1)
        weights[0, 1] = -torch.inf
        return Queries(vectors, weights)

    return make


def unit(*shape, seed=0):
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=-1)


def definition(users, items):
    """`[B, N + 1]` scores in float64; row 0 is no item."""
    if isinstance(users, Queries):
        exact = Queries(users.vectors.double(), users.log_weights.double())
        scores = exact.scores(items.double())
    else:
        scores = (users.double() @ items.double().T).amax(dim=1)
    scores[:, 0] = -torch.inf
    return scores


def assert_best(found, scores, length=LENGTH):
    """The lists hold the best scores, in descending order, each with its own item."""
    best = scores.topk(length, dim=1).values
    own = scores.gather(1, found.item_ids)
    torch.testing.assert_close(own, best, rtol=0, atol=2e-6)
    torch.testing.assert_close(found.scores.double(), best, rtol=0, atol=2e-5)
    for row in found.item_ids.tolist():
        assert len(set(row)) == length


def test_lists_are_exact(users):
    items, asked = unit(ITEMS + 1, DIM), users(10 * unit(USERS, K, DIM, seed=1))
    assert CoarseScores.pay(items, asked, LENGTH)
    certain = CoarseScores(items).search(asked, LENGTH, None)[2]
    assert certain.float().mean() > 0.5  # otherwise nothing would be saved
    assert_best(ExactIndex(items).search(asked, LENGTH), definition(asked, items))


def test_items_that_bfloat16_cannot_tell_apart(users):
    # 400 items within 1e-4 of each user's first interest: coarse scores are equal or in any order.
    interests = 10 * unit(USERS, K, DIM, seed=1)
    items = unit(ITEMS + 1, DIM)
    items[1:401] = unit(DIM, seed=3) + 1e-4 * torch.randn(
        400, DIM, generator=torch.Generator().manual_seed(4)
    )
    interests[:, 0] = 10 * unit(DIM, seed=3)
    asked = users(interests)
    certain = CoarseScores(items).search(asked, LENGTH, None)[2]
    assert not certain.any()
    assert_best(ExactIndex(items).search(asked, LENGTH), definition(asked, items))


def test_equal_scores_are_in_ascending_order_of_ids(users):
    items = unit(ITEMS + 1, DIM)
    items[2_000:2_010] = items[3]  # ten copies
    interests = 10 * unit(USERS, K, DIM, seed=1)
    interests[:, 0] = 10 * items[3]
    found = ExactIndex(items).search(users(interests), LENGTH)
    assert (found.item_ids[:, :11] == torch.tensor([3, *range(2_000, 2_010)])).all()


def test_excluded_items_are_left_out(users):
    items, asked = unit(ITEMS + 1, DIM), users(10 * unit(USERS, K, DIM, seed=1))
    scores = definition(asked, items)
    best = scores.topk(30, dim=1).indices
    exclude = torch.cat([best, torch.tensor([[0, ITEMS + 7]]).expand(USERS, 2)], dim=1)
    scores.scatter_(1, best, -torch.inf)
    assert_best(ExactIndex(items).search(asked, LENGTH, exclude=exclude), scores)


def test_fewer_items_than_asked_for_are_left(users):
    items, asked = unit(ITEMS + 1, DIM), users(10 * unit(USERS, K, DIM, seed=1))
    exclude = torch.arange(1, ITEMS - 4).expand(USERS, -1)  # five are left
    found = ExactIndex(items).search(asked, LENGTH, exclude=exclude)
    assert (found.item_ids[:, :5].sort(dim=1).values == torch.arange(ITEMS - 4, ITEMS + 1)).all()
    assert (found.item_ids[:, 5:] == 0).all()
    assert found.scores[:, 5:].isneginf().all()


def test_scores_too_large_for_exponentials(users):
    items, asked = unit(ITEMS + 1, DIM), users(300 * unit(USERS, K, DIM, seed=1))
    scores = definition(asked, items)
    found = ExactIndex(items).search(asked, LENGTH)
    torch.testing.assert_close(
        scores.gather(1, found.item_ids), scores.topk(LENGTH, dim=1).values, rtol=0, atol=2e-4
    )


def test_the_error_stays_within_its_bound():
    items, interests = unit(ITEMS + 1, DIM), 10 * unit(USERS, K, DIM, seed=1)
    scores = CoarseScores(items)
    rounded = interests.bfloat16()
    off = (rounded @ scores.rounded.T).double() - interests.double() @ items.double().T
    bound, largest = scores._bound(interests, rounded)
    assert (off.abs().amax(dim=(1, 2)) <= bound).all()
    assert (bound < 0.1).all()  # or there would be too many candidates
    assert (largest >= 10).all()
    assert (largest < 10.2).all()


def test_where_it_would_not_pay():
    items, interests = unit(ITEMS + 1, DIM), unit(USERS, K, DIM)
    assert not CoarseScores.pay(items.double(), interests.double(), LENGTH)
    assert not CoarseScores.pay(items, unit(USERS, 1, DIM), LENGTH)
    assert not CoarseScores.pay(items, unit(1, K, DIM), LENGTH)  # a single request
    assert not CoarseScores.pay(items[:1_000], interests, LENGTH)
    assert not CoarseScores.pay(items, interests, ITEMS // 2 + 1)
