"""Exact search against a plain sort of every score."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import crossbatch.retrieval.index as index_module
from crossbatch.queries import Queries
from crossbatch.retrieval import INDEXES, ExactIndex
from crossbatch.retrieval.topk import group_size


def brute_force(vectors, interests, k, exclude=None):
    """Every score, sorted by (score descending, id ascending) in plain Python."""
    scores = torch.einsum("bkd,nd->bkn", interests, vectors).amax(dim=1)
    lists = []
    for row, values in enumerate(scores.tolist()):
        banned = {0} | (set(exclude[row].tolist()) if exclude is not None else set())
        pairs = sorted((-s, i) for i, s in enumerate(values) if i not in banned)[:k]
        pairs += [(float("inf"), 0)] * (k - len(pairs))
        lists.append(pairs)
    ids = torch.tensor([[i for _, i in pairs] for pairs in lists])
    values = torch.tensor([[-s for s, _ in pairs] for pairs in lists], dtype=vectors.dtype)
    return values, ids


def integer_vectors(seed, *shape, values=3):
    """Small integers: products are exact in any order, and ties are everywhere."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-values, values + 1, shape, generator=generator).float()


def stream(patch):
    """Let small catalogues take the way of large ones."""
    patch.setattr(index_module, "SMALL_ITEMS", 0)
    patch.setattr(index_module, "FEW_ITEMS", 0)


def shrink(patch, group=4):
    stream(patch)
    patch.setattr(index_module, "BLOCK_ROWS", 6)
    patch.setattr(index_module, "tile_items", lambda num_items, rows: 8)
    patch.setattr(index_module, "group_size", lambda seen, k, largest: group)


@pytest.fixture(params=["whole rows", "streamed"])
def either_way(request, monkeypatch):
    """Both ways to score every item: a small catalogue's own, and that of a large one."""
    monkeypatch.setattr(index_module.CoarseScores, "pay", lambda *_: False)
    if request.param == "streamed":
        stream(monkeypatch)


@pytest.fixture
def tiny_tiles(monkeypatch):
    """Many tiles, blocks and merges already on a toy catalogue."""
    shrink(monkeypatch)


@pytest.mark.parametrize("name", INDEXES)
def test_every_index_declares_its_size_and_never_returns_padding(name):
    vectors = torch.randn(101, 8)
    vectors[0] = 100.0
    if name != "exact":
        pytest.importorskip("faiss")
    index = INDEXES[name](vectors)
    top = index.search(torch.rand(5, 2, 8), 10)
    assert index.num_items == 100
    assert top.item_ids.shape == top.scores.shape == (5, 10)
    assert top.item_ids.min() >= 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num_items=st.integers(1, 90),
    users=st.integers(0, 13),
    K=st.integers(1, 4),
    k=st.integers(1, 100),
    excluded=st.integers(0, 30),
    group=st.sampled_from([1, 2, 4, 8]),
)
def test_equals_brute_force_with_ties_and_exclusion(seed, num_items, users, K, k, excluded, group):
    vectors = integer_vectors(seed, num_items + 1, 3)
    interests = integer_vectors(seed + 1, users, K, 3)
    generator = torch.Generator().manual_seed(seed)
    exclude = torch.randint(0, num_items + 5, (users, excluded), generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, group)
        top = ExactIndex(vectors).search(interests, k, exclude=exclude)
    if users:
        scores, ids = brute_force(vectors, interests, k, exclude)
        assert torch.equal(top.item_ids, ids)
        assert torch.equal(top.scores, scores)
    assert top.item_ids.shape == (users, k)


@pytest.mark.parametrize("K", [1, 4])
@pytest.mark.parametrize("k", [50, 3000])
def test_equals_brute_force_at_real_tile_sizes(either_way, K, k):
    torch.manual_seed(0)
    vectors = torch.randn(5001, 16, dtype=torch.float64)
    interests = torch.randn(600 // K, K, 16, dtype=torch.float64)
    top = ExactIndex(vectors).search(interests, k)
    scores = torch.einsum("bkd,nd->bkn", interests, vectors[1:]).amax(dim=1)
    expected = scores.topk(k, dim=1)
    assert torch.equal(top.item_ids, expected.indices + 1)
    torch.testing.assert_close(top.scores, expected.values)


@pytest.mark.parametrize("num_items", [1, 31, 32, 33, 1000, 300_000])
@pytest.mark.parametrize("rows", [1, 512])
def test_tiles_hold_whole_groups(num_items, rows):
    tile = index_module.tile_items(num_items, rows)
    assert tile > 0
    for k in (1, 50, 10**6):
        for seen in (1, 2000, 10**7):
            group = group_size(seen, k, index_module.MAX_GROUP)
            assert tile % group == 0
            assert group == 1 or group**2 * k <= seen


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_worst_case_order_of_scores(tiny_tiles, direction):
    """Ascending scores pass every threshold, descending ones none: both must be exact."""
    vectors = (direction * torch.arange(0.0, 500.0))[:, None]
    top = ExactIndex(vectors).search(torch.ones(3, 1, 1), 7)
    expected = list(range(499, 492, -1)) if direction > 0 else list(range(1, 8))
    assert top.item_ids.tolist() == [expected] * 3


def test_equal_scores_stand_in_ascending_id(either_way):
    top = ExactIndex(torch.ones(4000, 2)).search(torch.ones(2, 3, 2), 5)
    assert top.item_ids.tolist() == [[1, 2, 3, 4, 5]] * 2


def test_max_over_interests_equals_pooling_one_search_per_interest():
    """ComiRec searches each interest, pools, keeps the best of repeats: the same list."""
    torch.manual_seed(1)
    vectors, interests = torch.randn(400, 6), torch.randn(4, 3, 6)
    index = ExactIndex(vectors)
    top = index.search(interests, 10)
    for row in range(4):
        pooled: dict[int, float] = {}
        for interest in range(3):
            one = index.search(interests[row : row + 1, interest : interest + 1], 10)
            for item, score in zip(one.item_ids[0].tolist(), one.scores[0].tolist(), strict=True):
                pooled[item] = max(score, pooled.get(item, score))
        ranked = sorted(pooled, key=pooled.__getitem__, reverse=True)[:10]
        assert top.item_ids[row].tolist() == ranked


def test_slots_beyond_the_catalogue_are_empty(either_way):
    top = ExactIndex(torch.eye(4)).search(torch.ones(1, 1, 4), 6, exclude=torch.tensor([[2, 0]]))
    assert top.item_ids.tolist() == [[1, 3, 0, 0, 0, 0]]
    assert top.scores.tolist() == [[1.0, 1.0] + [float("-inf")] * 4]


def test_exclusion_is_per_user_and_ignores_unknown_ids(either_way):
    vectors = torch.tensor([[0.0], [3.0], [2.0], [1.0]])
    exclude = torch.tensor([[1, 0], [0, 0], [2, 99]])
    top = ExactIndex(vectors).search(torch.ones(3, 1, 1), 2, exclude=exclude)
    assert top.item_ids.tolist() == [[2, 3], [1, 2], [1, 3]]


def test_half_precision_vectors_are_searched_in_single():
    vectors = integer_vectors(3, 60, 4)
    interests = integer_vectors(4, 5, 2, 4)
    half = ExactIndex(vectors.bfloat16()).search(interests.bfloat16(), 9)
    assert torch.equal(half.item_ids, ExactIndex(vectors).search(interests, 9).item_ids)
    assert half.scores.dtype == torch.float32


def test_search_neither_needs_nor_leaves_gradients():
    vectors = torch.randn(20, 4, requires_grad=True)
    top = ExactIndex(vectors).search(torch.randn(2, 1, 4, requires_grad=True), 3)
    assert not top.scores.requires_grad
    assert vectors.grad is None


@pytest.mark.parametrize(("users", "K", "k"), [(200, 1, 20), (60, 4, 20), (40, 1, 4000)])
def test_memory_stays_within_tiles(monkeypatch, either_way, users, K, k):
    """No work array may approach [B, N]: the largest are of the size of a tile or of two lists."""
    sizes = []
    for name in ("new_empty", "new_full"):
        original = getattr(torch.Tensor, name)

        def recording(self, *shape, original=original, **options):
            result = original(self, *shape, **options)
            sizes.append(result.numel())
            return result

        monkeypatch.setattr(torch.Tensor, name, recording)
    monkeypatch.setattr(index_module, "TILE_SCORES", 1 << 14)
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 16)
    ExactIndex(torch.randn(5000, 2)).search(torch.randn(users, K, 2), k)
    assert max(sizes) <= 6 * index_module.TILE_SCORES < users * 5000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ExactIndex(torch.zeros(5)), "vectors must be"),
        (lambda: ExactIndex(torch.zeros(1, 4)), "vectors must be"),
        (lambda: ExactIndex(torch.full((3, 2), torch.nan)), "vectors must be finite"),
        (lambda: ExactIndex(torch.eye(3)).search(torch.zeros(2, 3), 1), "interests must be"),
        (lambda: ExactIndex(torch.eye(3)).search(torch.zeros(2, 1, 4), 1), "interests must be"),
        (lambda: ExactIndex(torch.eye(3)).search(torch.zeros(2, 0, 3), 1), "interests must be"),
        (lambda: ExactIndex(torch.eye(3)).search(torch.zeros(2, 1, 3), 0), "k must be"),
        (
            lambda: ExactIndex(torch.eye(3)).search(torch.full((1, 1, 3), torch.inf), 1),
            "interests must be finite",
        ),
        (
            lambda: ExactIndex(torch.eye(3)).search(
                torch.zeros(2, 1, 3), 1, exclude=torch.zeros(3, 1, dtype=torch.long)
            ),
            "exclude must be",
        ),
        (
            lambda: ExactIndex(torch.eye(3)).search(
                torch.zeros(2, 1, 3), 1, exclude=torch.zeros(2, 1)
            ),
            "integer",
        ),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_pitfall_25_every_item_is_ranked_not_a_sample():
    """Full ranking of a toy catalogue: the position of each item is its true rank."""
    torch.manual_seed(2)
    vectors, interests = torch.randn(301, 5), torch.randn(10, 1, 5)
    top = ExactIndex(vectors).search(interests, 300)
    assert torch.equal(top.item_ids.sort(dim=1).values, torch.arange(1, 301).expand(10, 300))
    scores = (interests[:, 0] @ vectors.T)[:, 1:]
    ranks = (scores[:, None, :] > scores[:, :, None]).sum(dim=2)  # how many items beat each one
    positions = top.item_ids.argsort(dim=1)
    assert torch.equal(positions, ranks)


@given(
    items=st.integers(1, 40),
    users=st.integers(1, 4),
    interests=st.integers(1, 4),
    k=st.integers(1, 45),
    levels=st.integers(1, 9),
    seed=st.integers(0, 10_000),
)
def test_lists_of_few_users_equal_a_sort_by_score_and_id(
    items: int, users: int, interests: int, k: int, levels: int, seed: int
) -> None:
    """Whole numbers of few levels make many ties, and products without rounding."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randint(-levels, levels + 1, (items + 1, 2), generator=generator).float()
    wanted = torch.randint(-2, 3, (users, interests, 2), generator=generator).float()
    exclude = torch.randint(0, items + 3, (users, 3), generator=generator)  # beyond the last, too
    top = ExactIndex(vectors).search(wanted, k, exclude=exclude)
    for user in range(users):
        scores = (wanted[user] @ vectors.T).amax(dim=0).tolist()
        banned = set(exclude[user].tolist()) | {0}
        eligible = [item for item in range(items + 1) if item not in banned]
        expected = sorted(eligible, key=lambda item: (-scores[item], item))[:k]
        blank = k - len(expected)
        assert top.item_ids[user].tolist() == expected + [0] * blank
        assert top.scores[user].tolist() == [scores[i] for i in expected] + [-torch.inf] * blank


def test_few_rows_at_once_or_streamed_give_the_same_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2_000, 16, generator=generator, dtype=torch.float64)
    interests = torch.randn(3, 4, 16, generator=generator, dtype=torch.float64)
    exclude = torch.randint(0, 2_000, (3, 5), generator=generator)
    short = ExactIndex(vectors).search(interests, 50, exclude=exclude)
    monkeypatch.setattr(index_module, "FEW_ITEMS", 0)
    long = ExactIndex(vectors).search(interests, 50, exclude=exclude)
    assert torch.equal(short.item_ids, long.item_ids)
    torch.testing.assert_close(short.scores, long.scores)


def together(vectors, queries, k, exclude=None):
    """Log-sum-exp scores in float64, sorted in plain Python."""
    scores = queries.vectors.double() @ vectors.double().T + queries.log_weights.double()[..., None]
    scores = scores.exp().sum(dim=1).log()
    lists = []
    for row, values in enumerate(scores.tolist()):
        banned = {0} | (set(exclude[row].tolist()) if exclude is not None else set())
        lists.append(sorted((-s, i) for i, s in enumerate(values) if i not in banned)[:k])
    return lists


@pytest.mark.parametrize("excluding", [False, True])
@pytest.mark.parametrize("num_items", [40, 700])
def test_weighted_queries_score_items_together(either_way, num_items, excluding):
    torch.manual_seed(num_items)
    B, K, d, k = 9, 4, 6, 10
    vectors = torch.randn(num_items + 1, d)
    log_weights = torch.randn(B, K)
    log_weights[:3, 2:] = -torch.inf
    queries = Queries(torch.randn(B, K, d), log_weights)
    exclude = torch.randint(0, num_items + 1, (B, 5)) if excluding else None
    top = ExactIndex(vectors).search(queries, k, exclude=exclude)
    for row, expected in enumerate(together(vectors, queries, k, exclude)):
        assert top.item_ids[row].tolist() == [item for _, item in expected]
        torch.testing.assert_close(
            top.scores[row], torch.tensor([-s for s, _ in expected], dtype=torch.float32)
        )
    best = ExactIndex(vectors).search(queries.vectors, k, exclude=exclude)
    assert not torch.equal(best.item_ids, top.item_ids)  # the best query alone ranks otherwise


def test_one_query_of_weight_one_is_one_interest(either_way):
    torch.manual_seed(0)
    vectors, interests = torch.randn(301, 5), torch.randn(7, 1, 5)
    index = ExactIndex(vectors)
    alone = index.search(interests, 8)
    together = index.search(Queries(interests, torch.zeros(7, 1)), 8)
    assert torch.equal(alone.item_ids, together.item_ids)
    torch.testing.assert_close(alone.scores, together.scores)


def test_users_without_a_query_are_refused():
    queries = Queries(torch.randn(2, 3, 4), torch.tensor([[0.0, 0, 0], [-torch.inf] * 3]))
    with pytest.raises(ValueError, match="the largest log-weight of each user must be finite"):
        ExactIndex(torch.randn(9, 4)).search(queries, 3)
