"""Few users at a time take a shorter way to the same lists."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.retrieval import ExactIndex
from crossbatch.retrieval import index as module


@given(
    items=st.integers(1, 40),
    users=st.integers(1, 4),
    interests=st.integers(1, 4),
    k=st.integers(1, 45),
    levels=st.integers(1, 9),
    seed=st.integers(0, 10_000),
)
def test_lists_are_those_of_a_sort_by_score_and_id(
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


def test_both_ways_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2_000, 16, generator=generator, dtype=torch.float64)
    interests = torch.randn(3, 4, 16, generator=generator, dtype=torch.float64)
    exclude = torch.randint(0, 2_000, (3, 5), generator=generator)
    short = ExactIndex(vectors).search(interests, 50, exclude=exclude)
    monkeypatch.setattr(module, "FEW_ITEMS", 0)
    long = ExactIndex(vectors).search(interests, 50, exclude=exclude)
    assert torch.equal(short.item_ids, long.item_ids)
    torch.testing.assert_close(short.scores, long.scores)
