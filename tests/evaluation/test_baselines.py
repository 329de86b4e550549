"""Popularity and item-kNN against dictionaries and loops."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.evaluation import item_knn as knn_module
from crossbatch.evaluation.baselines import (
    BASELINES,
    evaluate_baselines,
    first_distinct,
    item_knn,
    popularity,
)
from crossbatch.evaluation.item_knn import nearest_items

from .conftest import ToyBatch, batches_of


class ToyDataset:
    def __init__(self, sequences, num_items, rows=()):
        self.num_items = num_items
        self.sequences = sequences
        self.rows = rows
        flat = [item for sequence in sequences for item in sequence]
        self.item_counts = np.bincount(flat, minlength=num_items + 1)

    def train_sequences(self):
        offsets = np.cumsum([0] + [len(s) for s in self.sequences])
        flat = [item for sequence in self.sequences for item in sequence]
        return offsets, np.array(flat, dtype=np.int32)

    def eval_batches(self, split, **options):
        return batches_of(list(self.rows))


def histories_batch(histories, length=6):
    history = torch.tensor([(h + [0] * length)[:length] for h in histories])
    return ToyBatch(torch.arange(len(histories)), history, torch.tensor([]), torch.tensor([0]))


def literal_similarities(sequences, max_sequence=10**9):
    """Cosine of co-occurrence from pair counts in dictionaries."""
    sets = [set(s[-max_sequence:]) for s in sequences]
    frequency = Counter(item for s in sets for item in s)
    together = Counter(pair for s in sets for pair in itertools.permutations(s, 2))
    similar = defaultdict(dict)
    for (i, j), count in together.items():
        similar[i][j] = count / math.sqrt(frequency[i] * frequency[j])
    return similar


sequences_of_items = st.lists(st.lists(st.integers(1, 15), max_size=8), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(
    sequences=sequences_of_items,
    neighbours=st.integers(1, 16),
    max_sequence=st.integers(1, 9),
    pairs=st.integers(1, 60),
)
def test_neighbours_equal_literal_counts(sequences, neighbours, max_sequence, pairs):
    offsets, items = ToyDataset(sequences, 15).train_sequences()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knn_module, "PAIRS", pairs)
        found = nearest_items(
            offsets, items, num_items=15, neighbours=neighbours, max_sequence=max_sequence
        )
    similar = literal_similarities(sequences, max_sequence)
    for item in range(16):
        entries = slice(found.offsets[item], found.offsets[item + 1])
        expected = sorted(similar[item].items(), key=lambda pair: (-round(pair[1], 9), pair[0]))
        assert found.item_ids[entries].tolist() == [j for j, _ in expected[:neighbours]]
        assert found.similarities[entries].tolist() == pytest.approx(
            [s for _, s in expected[:neighbours]]
        )


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


@pytest.mark.parametrize("pairs", [1, 50, 1 << 22])
def test_ranking_in_chunks_of_users_changes_nothing(monkeypatch, pairs):
    rng = np.random.default_rng(0)
    sequences = [rng.integers(1, 30, size=6).tolist() for _ in range(80)]
    offsets, items = ToyDataset(sequences, 30).train_sequences()
    found = nearest_items(offsets, items, num_items=30, neighbours=10)
    histories = rng.integers(0, 31, size=(17, 5))
    whole = found.rank(histories, 8)
    monkeypatch.setattr(knn_module, "PAIRS", pairs)
    np.testing.assert_array_equal(found.rank(histories, 8), whole)


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
    assert list(results) == list(BASELINES)
    assert results["popularity"].per_user["recall@2"].tolist() == [1.0, 0.0]
    assert results["item_knn"].per_user["recall@1"].tolist() == [1.0, 0.5]


def test_unknown_baseline_is_named():
    with pytest.raises(ValueError, match="popularity, item_knn, got 'pop'"):
        evaluate_baselines(ToyDataset([[1]], 1), "test", names=["pop"])
