"""Intervals against theory, against explicit resampling, and by coverage."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest

from crossbatch import bootstrap
from crossbatch.bootstrap import (
    gain_interval,
    mean_interval,
    mean_intervals,
    paired_difference,
    resampled_means,
)


def test_interval_of_a_large_sample_is_the_normal_one():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=4000)
    interval = mean_interval(values, resamples=4000)
    half = 1.96 * values.std() / math.sqrt(4000)
    assert interval.value == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_nominal_coverage():
    """Of many samples, about 95 % of the intervals hold the true mean."""
    rng = np.random.default_rng(2)
    held = 0
    for seed in range(300):
        sample = rng.binomial(1, 0.3, size=200)
        interval = mean_interval(sample, resamples=400, seed=seed)
        held += interval.low <= 0.3 <= interval.high
    assert 0.91 <= held / 300 <= 0.98


def test_pairs_are_kept_together():
    """A constant gain on very uneven users is certain, though each mean alone is not."""
    b = np.random.default_rng(3).exponential(size=500)
    difference = paired_difference(b + 0.01, b)
    assert difference.value == pytest.approx(0.01)
    assert difference.low == pytest.approx(0.01)
    assert difference.high == pytest.approx(0.01)
    alone = mean_interval(b)
    assert alone.high - alone.low > 0.1


def test_relative_gain():
    b = np.random.default_rng(4).exponential(size=500)
    gain = paired_difference(1.2 * b, b, relative=True)
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.2, 0.2, 0.2))


def test_equal_models_are_not_told_apart():
    rng = np.random.default_rng(5)
    a, b = rng.binomial(1, 0.2, size=(2, 2000))
    difference = paired_difference(a, b)
    assert difference.low < 0 < difference.high


def test_direction_of_the_difference():
    assert paired_difference([1.0, 1.0, 0.9], [0.0, 0.1, 0.0]).low > 0


def test_undefined_users_are_left_out_of_both():
    nan = math.nan
    assert mean_interval([1.0, nan, 3.0]).value == 2.0
    assert paired_difference([1.0, nan, 3.0], [0.0, 5.0, nan]).value == 1.0


def test_no_users_and_zero_reference_are_undefined_without_a_warning():
    assert math.isnan(mean_interval([]).value)
    assert math.isnan(mean_interval([]).low)
    gain = paired_difference([1.0, 0.0], [0.0, 0.0], relative=True)
    assert math.isnan(gain.value)
    assert math.isnan(gain.high)


def test_seed_and_chunking(monkeypatch):
    values = np.random.default_rng(6).random(50)
    first = mean_interval(values, seed=1)
    assert mean_interval(values, seed=1) == first
    assert mean_interval(values, seed=2) != first
    monkeypatch.setattr(bootstrap, "CHUNK", 7)
    assert astuple(mean_interval(values, seed=1)) == pytest.approx(astuple(first))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_difference([1.0, 2.0], [1.0]), "same users"),
        (lambda: mean_interval([[1.0]]), "values must be"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def users(seed: int, count: int = 400, columns: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).random((count, columns)).astype(np.float32)


def test_each_replicate_is_the_mean_over_one_common_draw() -> None:
    values = users(0, count=50, columns=3)
    rng = np.random.default_rng(9)
    expected = [values[rng.integers(0, 50, 50)].astype(float).mean(axis=0) for _ in range(70)]
    got = resampled_means(values, resamples=70, seed=9)  # more than one chunk, the last short
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
            np.stack([reference, ours], axis=1).astype(np.float32), resamples=400
        )
        low, high = gain_interval(means[:, 1:], means[:, :1]) or (0.0, 0.0)
        covered += low <= 0.05 <= high
    assert 0.89 <= covered / 200 <= 0.99  # three standard errors around 0.95


def test_several_columns_from_one_draw_leave_out_undefined_users_of_each():
    values = np.random.default_rng(7).random((300, 2))
    values[::3, 1] = math.nan
    whole, part = mean_intervals(values)
    assert astuple(whole) == pytest.approx(astuple(mean_interval(values[:, 0])))
    assert part.value == pytest.approx(np.nanmean(values[:, 1]))
    alone = mean_interval(values[1::3, 1].tolist() + values[2::3, 1].tolist())
    assert part.low == pytest.approx(alone.low, abs=0.01)
    assert part.high == pytest.approx(alone.high, abs=0.01)
