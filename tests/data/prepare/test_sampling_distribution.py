from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.data import Dataset
from crossbatch.data.prepare import splits
from crossbatch.data.prepare.splits import training_positives

Maker = Callable[..., Dataset]


def brute_force(sequences: list[list[int]], least: int, num_items: int) -> list[Fraction]:
    probabilities = [Fraction(0)] * (num_items + 1)
    able = [items for items in sequences if len(items) > least]
    for items in able:
        for item in items[least:]:
            probabilities[item] += Fraction(1, len(able) * (len(items) - least))
    return probabilities


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=9), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_probabilities_are_the_exact_sum_over_users_and_positions(
    sequences: list[list[int]], least: int
) -> None:
    ends = np.cumsum([len(items) for items in sequences])
    starts = ends - [len(items) for items in sequences]
    items = np.array([item for sequence in sequences for item in sequence])
    found = training_positives(items, starts, ends, num_items=6, min_history=least)
    expected = brute_force(sequences, least, 6)
    np.testing.assert_allclose(
        found.probabilities, np.array([float(q) for q in expected]), atol=1e-12
    )
    counts = Counter(items.tolist())
    assert found.counts.tolist() == [counts[item] for item in range(7)]
    assert found.samples == sum(max(len(sequence) - least, 0) for sequence in sequences)


def test_pieces_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 20, size=50)
    ends, items = np.cumsum(lengths), rng.integers(1, 7, size=int(lengths.sum()))
    found = []
    for rows in (10**6, 7, 1):
        monkeypatch.setattr(splits, "SUMMED_ROWS", rows)
        found.append(training_positives(items, ends - lengths, ends, num_items=6, min_history=4))
    for other in found[1:]:
        assert other.counts.tolist() == found[0].counts.tolist()
        np.testing.assert_allclose(other.probabilities, found[0].probabilities, atol=1e-12)


def test_heavy_users_weigh_no_more_than_light_ones() -> None:
    # one user with 100 × item 1 after the first four, one with a single item 2
    items = np.array([3] * 4 + [1] * 100 + [3] * 4 + [2])
    found = training_positives(
        items, np.array([0, 104]), np.array([104, 109]), num_items=3, min_history=4
    )
    assert found.probabilities == pytest.approx(
        np.array([0.0, 0.5, 0.5, 0.0])
    )  # raw frequency would say 100 : 1
    assert found.counts.tolist() == [0, 100, 1, 8]


@pytest.mark.parametrize("split", ["user", "leave_last_out", "time"])
def test_batches_follow_the_stored_distribution(make_dataset: Maker, split: str) -> None:
    rng = np.random.default_rng(0)
    rows = [
        (f"u{user}", f"i{min(int(rng.zipf(1.6)), 12)}", step)
        for user in range(60)
        for step in range(int(rng.integers(5, 30)))
    ]
    dataset = make_dataset(rows, split=split, min_history=4)
    drawn = np.zeros(dataset.num_items + 1)
    steps, size = 1_500, 20
    for batch in islice(dataset.batches(size, seed=7), steps):
        drawn += np.bincount(batch.item_ids.numpy(), minlength=len(drawn))
    q = np.asarray(dataset.sampler_law)
    assert q.sum() == pytest.approx(1.0, abs=1e-12)
    error = np.abs(drawn / (steps * size) - q)
    assert (error <= 5 * np.sqrt(q * (1 - q) / (steps * size)) + 1e-9).all()


def test_items_only_seen_early_are_never_positive(make_dataset: Maker) -> None:
    rows = [(f"u{user}", item, step) for user in range(10) for step, item in enumerate("abcdz")]
    dataset = make_dataset(rows, min_history=4)
    early = dataset.item_ids(["a", "b", "c", "d"])
    assert dataset.sampler_law[early].sum() == 0.0
    assert (dataset.item_counts[early] > 0).all()
