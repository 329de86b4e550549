"""Top-k of streamed tiles, with the compiled scan and without, and of whole rows, against sorts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.kernels import topk_scan
from crossbatch.retrieval import ExactIndex, topk
from crossbatch.retrieval import index as index_module
from crossbatch.retrieval.index import MAX_ROW_GROUP
from crossbatch.retrieval.topk import RunningTopK, best_of_rows, group_size


def streamed(tiles, k, group):
    """Lists and ids after tiles `[n, K, B]`, merged after each but every third."""
    best = RunningTopK(tiles[0].shape[2], k, like=tiles[0])
    seen = 0
    for number, tile in enumerate(tiles):
        best.scan(tile, group, first_id=seen + 1)
        seen += len(tile)
        if number % 3 != 2:
            best.merge(items_seen=seen)
    best.merge(items_seen=seen)
    return best.scores, best.item_ids


@settings(deadline=None, max_examples=60)
@given(
    K=st.integers(1, 4),
    k=st.integers(1, 40),
    group=st.sampled_from([1, 4, 16]),
    values=st.sampled_from([3, 1000]),  # few: most scores are equal
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 10_000),
)
def test_streamed_lists_equal_a_sort(K, k, group, values, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(values, (5 * 32, K, 20), generator=generator).to(dtype)
    scores[torch.rand(scores.shape, generator=generator) < 0.1] = -torch.inf
    tiles = scores.split(32)
    found, ids = streamed(tiles, k, group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "scores_above", topk_scan.definition)
        plain, plain_ids = streamed(tiles, k, group)
    assert torch.equal(found, plain)
    assert torch.equal(ids, plain_ids)
    best = scores.amax(dim=1).T  # [B, n]
    expected, order = best.sort(dim=1, descending=True, stable=True)
    assert torch.equal(found, expected[:, :k])
    real = expected[:, :k] > -torch.inf
    assert torch.equal(ids[real], order[:, :k][real] + 1)


def test_every_item_beats_the_last():
    tiles = torch.arange(96.0).view(3, 32, 1, 1).expand(3, 32, 1, 20)
    found, ids = streamed([tile.contiguous() for tile in tiles], 5, 4)
    assert torch.equal(ids, torch.arange(96, 91, -1).expand(20, 5))
    assert torch.equal(found, torch.arange(95.0, 90.0, -1).expand(20, 5))


@given(
    k=st.integers(1, 20),
    group=st.sampled_from([1, 2, 4, 8]),
    more=st.integers(1, 12),
    levels=st.sampled_from([2, 30, 100_000]),
    seed=st.integers(0, 10_000),
)
def test_whole_rows_equal_a_sort_unless_the_kth_place_is_tied(k, group, more, levels, seed):
    generator = torch.Generator().manual_seed(seed)
    columns = group * (k + more)
    scores = torch.randint(levels, (3, columns), generator=generator).float()
    found = best_of_rows(scores, k, group)
    rows = [sorted((-score, column) for column, score in enumerate(row)) for row in scores.tolist()]
    if any(row[k - 1][0] == row[k][0] for row in rows):
        assert found is None
    else:
        assert found is not None
        assert found[0].tolist() == [[-score for score, _ in row[:k]] for row in rows]
        assert found[1].tolist() == [[column for _, column in row[:k]] for row in rows]


@given(columns=st.integers(2, 100_000), k=st.integers(1, 1_000))
def test_there_are_more_groups_than_places(columns, k):
    group = group_size(columns, k + 1, MAX_ROW_GROUP)
    assert group == 1 or columns // group > k


@pytest.mark.parametrize("num_items", [1_000, 32_768, 32_769])
def test_small_and_large_catalogues_agree(monkeypatch, num_items):
    """Whole numbers: products are exact whatever the shape of the call."""
    generator = torch.Generator().manual_seed(num_items)
    vectors = torch.randint(-50, 51, (num_items + 1, 8), generator=generator).float()
    interests = torch.randint(-50, 51, (40, 2, 8), generator=generator).float()
    exclude = torch.randint(0, num_items + 1, (40, 30), generator=generator)
    own = ExactIndex(vectors).search(interests, 50, exclude=exclude)
    monkeypatch.setattr(index_module, "SMALL_ITEMS", 0)
    streamed = ExactIndex(vectors).search(interests, 50, exclude=exclude)
    assert torch.equal(own.item_ids, streamed.item_ids)
    assert torch.equal(own.scores, streamed.scores)
