"""Popularity and item-kNN against dictionaries and loops."""

import itertools
import math
from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.evaluation.baselines import (
    evaluate_baselines,
    first_distinct,
    item_knn,
    popularity,
)

from .conftest import ToyDataset, histories_batch


def literal_similarities(sequences):
    """Cosine of co-occurrence from pair counts in dictionaries."""
    sets = [set(s) for s in sequences]
    frequency = Counter(item for s in sets for item in s)
    together = Counter(pair for s in sets for pair in itertools.permutations(s, 2))
    similar = defaultdict(dict)
    for (i, j), count in together.items():
        similar[i][j] = count / math.sqrt(frequency[i] * frequency[j])
    return similar


def test_a_history_scores_items_by_summed_similarity():
    sequences = [[1, 2], [1, 2], [1, 3], [4, 3], [4, 3], [5, 6]]
    recommend = item_knn(ToyDataset(sequences, 7))
    similar = literal_similarities(sequences)
    score = Counter()
    for item in (1, 4):
        score.update(similar[item])
    expected = sorted(score, key=lambda i: (-score[i], i))
    ranked = recommend(histories_batch([[1, 4]]), 2, None)
    assert ranked.tolist() == [expected] == [[3, 2]]


def test_popular_items_fill_a_list_that_neighbours_leave_short():
    recommend = item_knn(ToyDataset([[1, 2], [3, 4], [3, 5], [3, 1]], 6))
    ranked = recommend(histories_batch([[2], [6]]), 4, None)
    assert ranked.tolist() == [[1, 3, 2, 4], [3, 1, 2, 4]]  # item 2's neighbour, then by count


def test_excluded_items_give_way_to_the_next():
    dataset = ToyDataset([[1, 2], [1, 2], [1, 3], [4, 1]], 5)
    exclude = torch.tensor([[1, 2, 0]])
    for baseline in (popularity(dataset), item_knn(dataset)):
        ranked = baseline(histories_batch([[1]]), 3, exclude)
        assert ranked.tolist() == [[3, 4, 5]]


def test_popularity_ranks_by_count_then_id_and_puts_unseen_items_last():
    recommend = popularity(ToyDataset([[2, 2, 3], [3, 1]], 4))
    assert recommend(histories_batch([[1], [2]]), 4, None).tolist() == [[2, 3, 1, 4]] * 2
    assert recommend(histories_batch([[1]]), 6, None).tolist() == [[2, 3, 1, 4, 0, 0]]


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 9), min_size=6, max_size=6), min_size=1, max_size=5),
    k=st.integers(1, 8),
    banned=st.lists(st.integers(0, 9), max_size=3),
)
def test_first_distinct_equals_a_loop(rows, k, banned):
    exclude = torch.tensor([banned] * len(rows), dtype=torch.long).view(len(rows), -1)
    expected = []
    for row in rows:
        kept = [item for item in dict.fromkeys(row) if item and item not in banned][:k]
        expected.append(kept + [0] * (k - len(kept)))
    assert first_distinct(torch.tensor(rows), k, exclude).tolist() == expected


def test_baselines_share_the_models_table():
    rows = [([1], [2]), ([3], [3, 4])]
    dataset = ToyDataset([[1, 2], [1, 2], [3, 4]], 5, rows)
    results = evaluate_baselines(dataset, "test", ks=(1, 2))
    assert list(results) == ["popularity", "item_knn"]
    assert results["popularity"].per_user["recall@2"].tolist() == [1.0, 0.0]
    assert results["item_knn"].per_user["recall@1"].tolist() == [1.0, 0.5]


def test_settings_reach_the_baseline():
    rows = [([1], [4]), ([2], [3])]
    dataset = ToyDataset([[1, 2], [1, 2], [1, 4], [2, 3]], 5, rows)
    wide, narrow = (
        evaluate_baselines(
            dataset, "test", names=["item_knn"], settings={"item_knn": {"neighbours": n}}, ks=(2,)
        )["item_knn"].means()["recall@2"]
        for n in (200, 1)
    )
    # With one neighbour each, a list goes on with the popular items 2 and 1.
    assert (wide, narrow) == (1.0, 0.0)


def test_unknown_baseline_is_named():
    with pytest.raises(ValueError, match=r"popularity, item_knn, .*got 'pop'"):
        evaluate_baselines(ToyDataset([[1]], 1), "test", names=["pop"])
