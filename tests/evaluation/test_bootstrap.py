"""Intervals against theory, against explicit resampling, and by coverage."""

import math
from dataclasses import astuple

import numpy as np
import pytest

from crossbatch.evaluation import bootstrap
from crossbatch.evaluation.bootstrap import mean_interval, paired_difference, resampled_means


def test_interval_of_a_large_sample_is_the_normal_one():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=4000)
    interval = mean_interval(values, resamples=4000)
    half = 1.96 * values.std() / math.sqrt(4000)
    assert interval.value == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_distinct_values_are_drawn_by_the_law_of_resampling_users():
    """Moments and quantiles of the shortcut equal those of drawing user indices."""
    rng = np.random.default_rng(1)
    values = rng.choice([0.0, 0.25, 1.0], p=[0.8, 0.15, 0.05], size=60)
    ours = resampled_means(values[:, None], resamples=20_000, seed=0)[:, 0]
    plain = values[rng.integers(0, 60, size=(20_000, 60))].mean(axis=1)
    assert ours.mean() == pytest.approx(plain.mean(), abs=0.002)
    assert ours.std() == pytest.approx(plain.std(), rel=0.03)
    np.testing.assert_allclose(
        np.quantile(ours, [0.025, 0.5, 0.975]), np.quantile(plain, [0.025, 0.5, 0.975]), atol=0.009
    )


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
    monkeypatch.setattr(bootstrap, "COUNTS", 120)
    assert astuple(mean_interval(values, seed=1)) == pytest.approx(astuple(first))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_difference([1.0, 2.0], [1.0]), "same users"),
        (lambda: mean_interval([[1.0]]), "values must be"),
        (lambda: mean_interval([1.0], level=95), "level must lie"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
