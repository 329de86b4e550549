"""Popularity by hand; novelty and diversity against sums over pairs, written out in float64."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from crossbatch.data import Feature
from crossbatch.evaluation import BANDS, Popularity
from crossbatch.evaluation.list_measures import ContentDiversity, Novelty, VectorDiversity


def bands(counts):
    return [BANDS[i] for i in Popularity.from_counts(counts).band[1:].tolist()]


def test_bands_hold_equal_shares_of_the_traffic():
    # 12 interactions: item 3 alone is a third, items 1 and 2 the second, 4 and 5 the last.
    assert bands([0, 2, 2, 4, 2, 2, 0]) == ["mid", "mid", "head", "tail", "tail", "cold"]


def test_a_dominant_item_is_the_head():
    assert bands([0, 100, 1, 1]) == ["head", "tail", "tail"]


def test_nothing_trained_means_all_cold():
    assert bands([0, 0, 0]) == ["cold", "cold"]


def test_ranks_are_mid_ranks_and_average_one_half():
    popularity = Popularity.from_counts(np.array([0, 5, 1, 1, 9]))
    torch.testing.assert_close(
        popularity.rank[1:], torch.tensor([1.5, 3.0, 3.0, 0.5], dtype=torch.float64) / 4
    )
    assert float(popularity.rank[1:].mean()) == 0.5
    assert popularity.num_items == 4


def test_padding_has_no_band():
    assert Popularity.from_counts(torch.tensor([7, 1])).band[0] == -1


RNG = np.random.default_rng(5)
NUM_ITEMS = 30
RANKED = torch.from_numpy(np.array([RNG.permutation(NUM_ITEMS)[:7] + 1 for _ in range(300)]))
RANKED[4, 3:] = 0  # three items
RANKED[5, 1:] = 0  # one item: no pair
RANKED[6] = 0


def mean_distance(row, cosine):
    items = [item for item in row.tolist() if item]
    pairs = list(combinations(items, 2))
    return 1 - sum(cosine(i, j) for i, j in pairs) / len(pairs) if pairs else math.nan


def test_novelty_is_the_self_information_of_training_counts():
    counts = [0, 8, 4, 4, 0]  # 16 interactions: log2 is 4
    lists = torch.tensor([[1, 2], [4, 3], [2, 0], [0, 0]])
    expected = [(1 + 2) / 2 / 4, (4 + 2) / 2 / 4, 2 / 4, math.nan]
    assert Novelty(counts)(lists).tolist() == pytest.approx(expected, nan_ok=True)


def test_diversity_by_vectors_is_one_minus_the_mean_cosine_of_pairs():
    vectors = RNG.standard_normal((NUM_ITEMS + 1, 5))

    def cosine(i, j):
        return vectors[i] @ vectors[j] / np.linalg.norm(vectors[i]) / np.linalg.norm(vectors[j])

    found = VectorDiversity(torch.from_numpy(vectors).float())(RANKED)
    expected = [mean_distance(row, cosine) for row in RANKED]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_diversity_by_content_is_the_mean_over_features():
    genres = [set(RNG.integers(1, 6, RNG.integers(0, 4)).tolist()) for _ in range(NUM_ITEMS + 1)]
    brand = RNG.integers(0, 4, NUM_ITEMS + 1).astype(np.int32)  # 0 is unknown
    dense = RNG.standard_normal((NUM_ITEMS + 1, 3)).astype(np.float16)
    flat = [value for each in genres for value in [*each, *list(each)[:1]]]  # one is repeated
    lengths = [len(each) + bool(each) for each in genres]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    features = [
        Feature("genres", "multi_valued", np.array(flat, dtype=np.int32), offsets, 6),
        Feature("brand", "categorical", brand, None, 4),
        Feature("picture", "dense", dense, None, 3),
        Feature("price", "numeric", np.zeros((NUM_ITEMS + 1, 2), np.float32), None, 2),
    ]

    def cosine(i, j):
        size = math.sqrt(len(genres[i]) * len(genres[j]))
        shared = len(genres[i] & genres[j]) / size if size else 0.0
        a, b = dense[i].astype(np.float64), dense[j].astype(np.float64)
        pictures = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        return (shared + float(brand[i] == brand[j] > 0) + pictures) / 3

    found = ContentDiversity({feature.name: feature for feature in features})(RANKED)
    expected = [mean_distance(row, cosine) for row in RANKED]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    assert not ContentDiversity({"price": features[-1]}).parts


def test_the_same_item_twice_and_opposite_items():
    vectors = torch.tensor([[0.0, 0], [1, 0], [2, 0], [-3, 0], [0, 1]])
    lists = torch.tensor([[1, 2], [1, 3], [1, 4]])
    assert VectorDiversity(vectors)(lists).tolist() == pytest.approx([0, 2, 1])
