"""Item-to-item neighbours against dictionaries, and against the random walk written as matrices."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.evaluation import neighbours as neighbours_module
from crossbatch.evaluation.baselines import rp3beta
from crossbatch.evaluation.neighbours import distinct_items, nearest_items

from .conftest import ToyDataset, histories_batch


def literal_weights(sequences, a, b, c, max_sequence=10**9):
    """n_i^−a Σ_u n_u^−b n_j^−c from a loop over users and pairs."""
    sets = [set(s[-max_sequence:]) for s in sequences]
    frequency = Counter(item for s in sets for item in s)
    common = Counter()
    for s in sets:
        for pair in itertools.permutations(s, 2):
            common[pair] += len(s) ** -b
    weights = defaultdict(dict)
    for (i, j), total in common.items():
        weights[i][j] = total / (frequency[i] ** a * frequency[j] ** c)
    return weights


sequences_of_items = st.lists(st.lists(st.integers(1, 15), max_size=8), min_size=1, max_size=25)


@settings(max_examples=80, deadline=None)
@given(
    sequences=sequences_of_items,
    # With the second choice, weights that differ are never equal but for rounding.
    powers=st.sampled_from([(0.5, 0.0, 0.5), (0.31, 0.31, 0.17)]),
    neighbours=st.integers(1, 16),
    max_sequence=st.integers(1, 9),
    pairs=st.integers(1, 60),
)
def test_neighbours_equal_literal_sums(sequences, powers, neighbours, max_sequence, pairs):
    offsets, items = ToyDataset(sequences, 15).train_sequences()
    a, b, c = powers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours_module, "PAIRS", pairs)
        found = nearest_items(
            offsets,
            items,
            num_items=15,
            item_power=a,
            user_power=b,
            neighbour_power=c,
            neighbours=neighbours,
            max_sequence=max_sequence,
        )
    expected_weights = literal_weights(sequences, a, b, c, max_sequence)
    for item in range(16):
        entries = slice(found.offsets[item], found.offsets[item + 1])
        of_item = expected_weights[item].items()
        expected = sorted(of_item, key=lambda pair: (-round(pair[1], 9), pair[0]))[:neighbours]
        assert found.item_ids[entries].tolist() == [j for j, _ in expected]
        assert found.weights[entries].tolist() == pytest.approx([w for _, w in expected])


def test_default_weight_is_the_cosine_of_co_occurrence():
    offsets, items = ToyDataset([[1, 2], [1, 2, 3], [1]], 3).train_sequences()
    found = nearest_items(offsets, items, num_items=3)
    assert found.item_ids[found.offsets[1] : found.offsets[2]].tolist() == [2, 3]
    assert found.weights[found.offsets[1] : found.offsets[2]].tolist() == pytest.approx(
        [2 / math.sqrt(3 * 2), 1 / math.sqrt(3 * 1)]
    )


@pytest.mark.parametrize("pairs", [1, 50, 1 << 22])
def test_ranking_in_chunks_of_users_changes_nothing(monkeypatch, pairs):
    rng = np.random.default_rng(0)
    sequences = [rng.integers(1, 30, size=6).tolist() for _ in range(80)]
    offsets, items = ToyDataset(sequences, 30).train_sequences()
    found = nearest_items(offsets, items, num_items=30, neighbours=10)
    histories = rng.integers(1, 31, size=(17, 5))
    whole = found.rank(histories, 8, decay=0.9)
    monkeypatch.setattr(neighbours_module, "PAIRS", pairs)
    np.testing.assert_array_equal(found.rank(histories, 8, decay=0.9), whole)


def walk_matrix(sequences, num_items, alpha, beta):
    """P(i → u)^α P(u → j)^α / n_j^β by products of dense matrices, zero diagonal; float64."""
    has = np.zeros((len(sequences), num_items + 1))
    for user, sequence in enumerate(sequences):
        has[user, sequence] = 1.0
    per_user, per_item = has.sum(axis=1), has.sum(axis=0)
    to_user = np.divide(has, per_item, out=np.zeros_like(has), where=per_item > 0).T ** alpha
    to_item = (has / per_user[:, None]) ** alpha
    to_user[has.T == 0], to_item[has == 0] = 0.0, 0.0
    walk = to_user @ to_item / np.maximum(per_item, 1.0) ** beta
    np.fill_diagonal(walk, 0.0)
    return walk


def walk_ranking(walk, history, counts, decay, banned=()):
    """Scores of one history by a loop over its items; then popular items."""
    scores = sum(
        decay ** (len(history) - 1 - place) * walk[item] for place, item in enumerate(history)
    )
    reached = [i for i in range(1, len(counts)) if len(history) and scores[i] > 0]
    reached.sort(key=lambda i: (-round(scores[i], 6), i))
    popular = sorted(range(1, len(counts)), key=lambda i: (-counts[i], i))
    return [i for i in dict.fromkeys([*reached, *popular]) if i not in banned]


@pytest.mark.parametrize(("alpha", "beta", "decay"), [(0.4, 0.1, 0.9), (0.8, 0.7, 0.5), (1, 0, 1)])
def test_rp3beta_is_a_random_walk_of_three_steps(alpha, beta, decay):
    rng = np.random.default_rng(4)
    sequences = [rng.choice(np.arange(1, 21), n, replace=False) for n in rng.integers(2, 9, 40)]
    dataset = ToyDataset([s.tolist() for s in sequences], 22)  # items 21 and 22 never occur
    histories = [[3, 7, 11, 3], [9], [], [21], [1, 2, 4, 5, 6, 8]]
    exclude = torch.tensor([[3, 7, 11, 0], [1, 2, 0, 0], [5, 0, 0, 0], [0] * 4, [1, 2, 4, 5]])
    recommend = rp3beta(dataset, alpha=alpha, beta=beta, decay=decay)
    walk = walk_matrix(dataset.sequences, 22, alpha, beta)
    for banned in (None, exclude):
        ranked = recommend(histories_batch(histories), 15, banned)
        for row, history in enumerate(histories):
            left_out = [] if banned is None else banned[row].tolist()
            expected = walk_ranking(walk, history, dataset.item_counts, decay, left_out)
            assert ranked[row].tolist() == expected[:15]


def test_equal_weights_stand_in_the_order_of_ids():
    recommend = rp3beta(ToyDataset([[1, 4, 2], [5, 1, 3]], 6))
    assert recommend(histories_batch([[1]]), 4, None).tolist() == [[2, 3, 4, 5]]


def test_newer_items_count_more():
    dataset = ToyDataset([[1, 2], [3, 4]], 4)
    recommend = rp3beta(dataset, decay=0.5)
    ranked = recommend(histories_batch([[1, 3], [3, 1]]), 2, None)
    assert ranked.tolist() == [[4, 2], [2, 4]]


def test_distinct_items_of_padded_histories():
    histories = torch.tensor([[4, 2, 4, 0], [0, 0, 0, 0], [7, 0, 0, 0]])
    ids, offsets = distinct_items(histories, 9)
    assert ids.tolist() == [2, 4, 7]
    assert offsets.tolist() == [0, 2, 2, 3]
