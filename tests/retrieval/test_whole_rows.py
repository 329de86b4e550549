"""The best of whole rows against a plain sort."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.retrieval import ExactIndex
from crossbatch.retrieval import index as index_module
from crossbatch.retrieval.whole_rows import best_of_rows, group_size


@given(
    k=st.integers(1, 20),
    group=st.sampled_from([1, 2, 4, 8]),
    more=st.integers(1, 12),
    levels=st.sampled_from([2, 30, 100_000]),
    seed=st.integers(0, 10_000),
)
def test_equals_a_sort_or_says_that_the_last_place_is_open(k, group, more, levels, seed):
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
    group = group_size(columns, k)
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
