"""Search by coarse scores: the lists are those of a float64 definition, whatever the vectors."""

import pytest
import torch

from crossbatch.queries import Queries
from crossbatch.retrieval import ExactIndex, coarse
from crossbatch.retrieval.coarse import CoarseScores, rounded

ITEMS, USERS, K, DIM, LENGTH = 5_000, 24, 6, 32, 20


@pytest.fixture(autouse=True)
def _on_any_processor(monkeypatch):
    monkeypatch.setattr(coarse, "_multiplies_bytes", lambda: True)
    monkeypatch.setattr(coarse, "FEWEST_PRODUCTS", 1 << 15)


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


@pytest.mark.parametrize("order", ["few first", "mixed"])
def test_users_with_different_numbers_of_queries(order):
    items, vectors = unit(ITEMS + 1, DIM), 10 * unit(100, K, DIM, seed=1)
    generator = torch.Generator().manual_seed(5)
    present = torch.rand(100, K, generator=generator) < 0.5
    present[:, 2] |= ~present.any(dim=1)
    if order == "few first":
        present = present.sort(dim=1, descending=True).values
        present = present[present.sum(dim=1).argsort(stable=True)]
    weights = torch.randn(100, K, generator=generator).masked_fill(~present, -torch.inf)
    asked = Queries(vectors, weights)
    exclude = torch.randint(0, ITEMS + 1, (100, 40), generator=generator)
    scores = definition(asked, items)
    scores.scatter_(1, exclude, -torch.inf)
    certain = CoarseScores(items).search(asked, LENGTH, exclude)[2]
    assert certain.float().mean() > 0.5
    assert_best(ExactIndex(items).search(asked, LENGTH, exclude=exclude), scores)


def test_many_candidates_of_a_few_users(monkeypatch):
    # Of some users hundreds of items are scored again, in portions of the memory allowed.
    monkeypatch.setattr(coarse, "GATHERED", 1 << 13)
    items, interests = unit(ITEMS + 1, DIM), 10 * unit(USERS, K, DIM, seed=1)
    items[1:401] = unit(DIM, seed=3) + 1e-4 * unit(400, DIM, seed=4)
    interests[::5, 0] = 10 * unit(DIM, seed=3)
    assert CoarseScores(items).search(interests, LENGTH, None)[2].all()
    assert_best(ExactIndex(items).search(interests, LENGTH), definition(interests, items))


def test_items_that_small_integers_cannot_tell_apart(users):
    # 1,000 items within 1e-4 of each user's first interest: coarse scores do not order them.
    interests = 10 * unit(USERS, K, DIM, seed=1)
    items = unit(ITEMS + 1, DIM)
    items[1:1001] = unit(DIM, seed=3) + 1e-4 * torch.randn(
        1000, DIM, generator=torch.Generator().manual_seed(4)
    )
    interests[:, 0] = 10 * unit(DIM, seed=3)
    asked = users(interests)
    certain = CoarseScores(items).search(asked, LENGTH, None)[2]
    assert not certain.any()
    assert_best(ExactIndex(items).search(asked, LENGTH), definition(asked, items))


@pytest.mark.parametrize("count", [30, 200, 1_000])
def test_nearly_equal_scores_at_the_end_of_the_list(users, count):
    # `count` items differ by a few units in the last place, in a random order of ids.
    items, interests = 0.5 * unit(ITEMS + 1, DIM), 10 * unit(USERS, K, DIM, seed=1)
    ids = 1 + torch.randperm(ITEMS, generator=torch.Generator().manual_seed(2))[:count]
    sizes = 1 + torch.arange(count) * 2e-7
    items[ids] = sizes[:, None] * unit(DIM, seed=3)
    interests[:, 0] = 10 * unit(DIM, seed=3)
    asked = users(interests)
    assert_best(ExactIndex(items).search(asked, LENGTH), definition(asked, items))


def test_items_in_ascending_order_of_their_scores(users):
    # Every item enters the lists for a while, so that all are candidates at some time.
    direction = unit(DIM, seed=3)
    items = torch.linspace(0, 1, ITEMS + 1)[:, None] * direction
    items += 1e-3 * unit(ITEMS + 1, DIM)
    interests = unit(USERS, K, DIM, seed=1) + 5 * direction
    asked = users(interests)
    assert_best(ExactIndex(items).search(asked, LENGTH), definition(asked, items))


def test_zeros_and_single_items_of_great_length(users):
    interests = unit(USERS, K, DIM, seed=1)
    interests[:4] = 0  # users for whom all items are alike
    items = unit(ITEMS + 1, DIM)
    items[100:200] = 0
    items[7] *= 50  # makes the bound useless for all
    asked = users(interests)
    found = ExactIndex(items).search(asked, LENGTH)
    assert_best(found, definition(asked, items))
    if not isinstance(asked, Queries):
        assert (found.item_ids[:4] == torch.arange(1, LENGTH + 1)).all()


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e20, 1e38])
def test_vectors_of_any_length(scale):
    items, interests = unit(ITEMS + 1, DIM), unit(USERS, K, DIM, seed=1)
    wanted = definition(interests, items * (scale / scale)).topk(LENGTH, dim=1).indices
    found = ExactIndex(items * scale).search(interests, LENGTH)
    if scale > 1e-30:  # below, float32 has no digits left
        assert (found.item_ids == wanted).all()
    assert (found.item_ids > 0).all()


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
    items[:2_000] *= torch.logspace(-6, 0, 2_000)[:, None]
    scores = CoarseScores(items)
    queries = interests.flatten(0, 1)
    codes, factors, errors = rounded(queries)
    products = codes.double() @ scores.codes.double().T
    off = products * factors[:, None] * scores.factors - queries.double() @ items.double().T
    lengths, errors = queries.norm(dim=1).view(USERS, K).T, errors.view(USERS, K).T
    bound, largest = scores._bound(lengths, errors)
    assert (off.abs().view(USERS, K, -1).amax(dim=(1, 2)) <= bound).all()
    assert (bound < 0.2).all()  # or there would be too many candidates
    assert (largest >= 10).all()
    assert (largest < 10.2).all()


def test_the_tiles_are_many_and_the_last_one_is_short(users, monkeypatch):
    monkeypatch.setattr(coarse, "tile_items", lambda *_: 96)
    items, asked = unit(ITEMS + 1, DIM), users(10 * unit(USERS, K, DIM, seed=1))
    certain = CoarseScores(items).search(asked, LENGTH, None)[2]
    assert certain.float().mean() > 0.5
    assert_best(ExactIndex(items).search(asked, LENGTH), definition(asked, items))


def test_where_it_would_not_pay():
    items, interests = unit(ITEMS + 1, DIM), unit(USERS, K, DIM)
    assert not CoarseScores.pay(items.double(), interests.double(), LENGTH)
    assert not CoarseScores.pay(items[:, :8], interests[:, :, :8], LENGTH)
    assert not CoarseScores.pay(items, unit(1, K, DIM), LENGTH)  # a single request
    assert not CoarseScores.pay(items, interests, 100)  # long lists of a small catalogue
    assert not CoarseScores.pay(items[:1_000], interests, LENGTH)
    assert not CoarseScores.pay(items, interests, ITEMS // 2 + 1)
