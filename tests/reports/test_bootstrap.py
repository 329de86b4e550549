from __future__ import annotations

import numpy as np
import pytest

from crossbatch.reports import bootstrap
from crossbatch.reports.bootstrap import gain_interval, resampled_means


def users(seed: int, count: int = 400, columns: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).random((count, columns)).astype(np.float32)


def test_each_replicate_is_the_mean_over_one_common_draw() -> None:
    values = users(0, count=50, columns=3)
    rng = np.random.default_rng(9)
    expected = [values[rng.integers(0, 50, 50)].astype(float).mean(axis=0) for _ in range(70)]
    got = resampled_means(values, replicates=70, seed=9)  # more than one chunk, the last short
    assert bootstrap.CHUNK < 70 < 3 * bootstrap.CHUNK
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_spread_of_the_means_is_the_standard_error() -> None:
    values = users(1)
    spread = resampled_means(values).std(axis=0)
    np.testing.assert_allclose(spread, values.std(axis=0) / np.sqrt(400), rtol=0.08)


def test_what_both_sides_share_cancels() -> None:
    values = users(2, columns=1)
    means = resampled_means(np.hstack([values, 1.1 * values]))
    low, high = gain_interval(means[:, 1:], means[:, :1]) or (0.0, 0.0)
    assert low == pytest.approx(0.1, abs=1e-5)
    assert high == pytest.approx(0.1, abs=1e-5)


def test_interval_is_the_percentile_of_the_ratios() -> None:
    means = resampled_means(users(3))
    ratios = np.sort(means[:, 0] / means[:, 1] - 1)
    low, high = gain_interval(means[:, :1], means[:, 1:]) or (0.0, 0.0)
    assert (ratios < low).mean() == pytest.approx(0.025, abs=0.001)
    assert (ratios > high).mean() == pytest.approx(0.025, abs=0.001)


def test_disagreeing_seeds_widen_the_interval() -> None:
    base = np.full((500, 1), 0.5)
    steady = gain_interval(np.full((500, 2), 0.55), np.hstack([base, base]))
    noisy = gain_interval(np.tile([[0.45, 0.65]], (500, 1)), np.hstack([base, base]))
    assert steady == pytest.approx((0.1, 0.1))
    assert noisy == pytest.approx((-0.1, 0.3))  # both draws of the same seed do occur


def test_seeds_are_drawn_in_pairs() -> None:
    """A seed that lifts both sides alike says nothing about the gain."""
    reference = np.tile([[0.2, 0.8]], (500, 1))
    assert gain_interval(1.5 * reference, reference) == pytest.approx((0.5, 0.5))


def test_no_ratio_over_a_reference_that_may_be_zero() -> None:
    assert gain_interval(np.ones((3, 1)), np.array([[0.5], [0.0], [0.5]])) is None


def test_same_seed_same_interval() -> None:
    np.testing.assert_array_equal(resampled_means(users(4)), resampled_means(users(4)))


def test_interval_covers_the_true_gain_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        reference = rng.gamma(2.0, 0.1, 300)  # mean 0.2
        ours = reference * 1.05 + rng.normal(0.0, 0.1, 300)
        means = resampled_means(
            np.stack([reference, ours], axis=1).astype(np.float32), replicates=400
        )
        low, high = gain_interval(means[:, 1:], means[:, :1]) or (0.0, 0.0)
        covered += low <= 0.05 <= high
    assert 0.89 <= covered / 200 <= 0.99  # three standard errors around 0.95
