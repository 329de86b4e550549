"""Searches among allowed items alone, against a float64 sort over Python dictionaries."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import crossbatch.retrieval.index as index_module
from crossbatch.queries import Queries
from crossbatch.retrieval import Allowed, ExactIndex, IVFIndex, TopK, coarse

ITEMS, DIM = 600, 8


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mask_of(share, seed=0, items=ITEMS):
    """`[N + 1]` with about this share of the items, and the padding, which must not matter."""
    chosen = torch.rand(items + 1, generator=torch.Generator().manual_seed(seed)) < share
    chosen[0] = True
    return chosen


def as_queries(vectors):
    weights = torch.linspace(0, -2, vectors.shape[1]).repeat(len(vectors), 1)
    if vectors.shape[1] > 1:
        weights[0, 0] = -torch.inf  # a query that is absent
    return Queries(vectors, weights)


def best_items(vectors, users, k, exclude, allowed):
    """For each user {item: score} of what may be returned, best k first."""
    if isinstance(users, Queries):
        exact = Queries(users.vectors.double(), users.log_weights.double())
        scores = exact.scores(vectors.double())
    else:
        scores = (users.double() @ vectors.double().T).amax(dim=1)
    may = {item for item, yes in enumerate(allowed.tolist()) if yes and item}
    lists = []
    for row, values in enumerate(scores.tolist()):
        rest = may - set(exclude[row].tolist())
        ranked = sorted(rest, key=lambda item: (-values[item], item))[:k]
        lists.append({item: values[item] for item in ranked})
    return lists


def assert_lists(found, expected, k):
    for ids, scores, best in zip(found.item_ids, found.scores, expected, strict=True):
        n = len(best)
        assert ids[n:].tolist() == [0] * (k - n)
        assert scores[n:].tolist() == [-float("inf")] * (k - n)
        assert ids[:n].tolist() == list(best)
        torch.testing.assert_close(
            scores[:n].double(), torch.tensor(list(best.values())).double(), rtol=1e-5, atol=1e-5
        )


@pytest.fixture(params=["whole rows", "streamed", "coarse"])
def every_way(request, monkeypatch):
    """All ways to score the items."""
    monkeypatch.setattr(coarse, "_multiplies_bytes", lambda: request.param == "coarse")
    monkeypatch.setattr(coarse, "FEWEST_ITEMS", 10)
    monkeypatch.setattr(coarse, "FEWEST_PRODUCTS", 0)
    monkeypatch.setattr(coarse, "FEWEST_COLUMNS", 2)
    monkeypatch.setattr(coarse, "FEWEST_ROWS", 4)
    if request.param == "streamed":
        monkeypatch.setattr(index_module, "SMALL_ITEMS", 0)
        monkeypatch.setattr(index_module, "FEW_ITEMS", 0)
        monkeypatch.setattr(index_module, "tile_items", lambda num_items, rows: 64)


@pytest.mark.usefixtures("every_way")
@pytest.mark.parametrize("share", [0.0, 0.005, 0.05, 0.12, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["one vector", "interests", "queries"])
def test_exact_search_returns_the_best_allowed_items(share, kind):
    vectors = random(ITEMS + 1, DIM)
    vectors[0] = 100.0
    users = random(6, 1 if kind == "one vector" else 4, DIM, seed=1)
    users = as_queries(users) if kind == "queries" else users
    exclude = torch.randint(0, ITEMS + 1, (6, 30), generator=torch.Generator().manual_seed(2))
    allowed = mask_of(share)
    found = ExactIndex(vectors).search(users, 20, exclude=exclude, allowed=allowed)
    assert_lists(found, best_items(vectors, users, 20, exclude, allowed), 20)
    nobody = torch.zeros(6, 0, dtype=torch.long)
    found = ExactIndex(vectors).search(users, 20, allowed=allowed)
    assert_lists(found, best_items(vectors, users, 20, nobody, allowed), 20)


@pytest.mark.parametrize("queries", [False, True])
@pytest.mark.parametrize("share", [0.003, 0.05, 0.5])
def test_every_allowed_item_can_be_reached_in_cells(share, queries):
    """With all cells read the lists are exact."""
    pytest.importorskip("faiss")
    vectors = random(4001, DIM)
    index = IVFIndex.build(vectors)
    index.probes = index.num_cells
    users = random(5, 3, DIM, seed=1)
    users = as_queries(users) if queries else users
    allowed = mask_of(share, items=4000)
    exclude = torch.randint(0, 4001, (5, 10), generator=torch.Generator().manual_seed(2))
    found = index.search(users, 10, exclude=exclude, allowed=allowed)
    assert_lists(found, best_items(vectors, users, 10, exclude, allowed), 10)


@pytest.fixture(scope="module")
def cells():
    pytest.importorskip("faiss")
    return IVFIndex.build(random(2001, DIM), probes=1)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.002, 0.03, 0.1, 0.4, 0.9]),
    k=st.integers(1, 60),
)
def test_one_cell_read_still_gives_full_lists(cells, seed, share, k):
    """k items whenever k match, all of them allowed, none twice, with their right scores."""
    users, allowed = random(4, 2, DIM, seed=seed), mask_of(share, seed, items=2000)
    found = cells.search(users, k, allowed=allowed)
    most = min(k, int(allowed[1:].sum()))
    scores = (users.double() @ cells.vectors.double().T).amax(dim=1)
    for row, ids in enumerate(found.item_ids.tolist()):
        listed = [item for item in ids if item]
        assert len(listed) == len(set(listed)) == most
        assert all(allowed[item] for item in listed)
        own = scores[row, listed]
        torch.testing.assert_close(found.scores[row, :most].double(), own, rtol=1e-5, atol=1e-5)


def test_no_users_no_lists():
    found = ExactIndex(random(50, DIM)).search(
        random(0, 1, DIM), 5, allowed=mask_of(0.05, items=49)
    )
    assert found.item_ids.shape == found.scores.shape == (0, 5)


@pytest.mark.parametrize("mask", [torch.ones(5, dtype=torch.bool), torch.ones(50)])
def test_masks_of_other_shapes_or_types_are_refused(mask):
    with pytest.raises(ValueError, match=r"allowed must be bool of shape \[50\], got"):
        ExactIndex(random(50, DIM)).search(random(1, 1, DIM), 5, allowed=mask)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.2, 0.9])
@pytest.mark.parametrize("K", [1, 4])
def test_a_prepared_set_gives_the_same_lists_again_and_again(share, K):
    vectors, users = random(5_001, DIM, seed=1), random(9, K, DIM, seed=2)
    mask = mask_of(share, items=5_000)
    exclude = torch.randint(0, 5_001, (9, 30), generator=torch.Generator().manual_seed(3))
    expected = best_items(vectors, users, 12, exclude, mask)
    allowed = Allowed(mask)
    assert allowed.count == sum(mask[1:].tolist())
    for index in (
        ExactIndex(vectors),
        IVFIndex.build(vectors, probes=256),
        ExactIndex(2 * vectors),
    ):
        for _ in range(2):
            found = index.search(users, 12, exclude=exclude, allowed=allowed)
            scale = 2 if index.vectors[1, 0] != vectors[1, 0] else 1
            assert_lists(TopK(found.scores / scale, found.item_ids), expected, 12)


def test_excluded_items_may_be_a_column_of_a_larger_tensor():
    """torch warns once of a search in strided memory; a server's log is no place for that."""
    vectors, users, allowed = random(ITEMS + 1, DIM), random(3, 1, DIM, seed=1), mask_of(0.02)
    among = allowed.nonzero().squeeze(1)[1:]
    exclude = torch.stack([among[:3], among[3:6]]).T  # [3, 2], its rows not contiguous
    assert not exclude.is_contiguous()
    found = ExactIndex(vectors).search(users, 5, exclude=exclude, allowed=allowed)
    assert_lists(found, best_items(vectors, users, 5, exclude, allowed), 5)
