"""Popularity bands and ranks by hand."""

import numpy as np
import torch

from crossbatch.evaluation import BANDS, Popularity


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
