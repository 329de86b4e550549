from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.reports.svg import exact, limits, log_limits, log_ticks, short, ticks

values = st.floats(-1e9, 1e9).map(lambda value: float(f"{value:.6g}"))


@given(values, st.floats(1e-3, 1e9), st.integers(2, 8))
def test_ticks_are_round_even_and_inside(low: float, width: float, target: int) -> None:
    high = low + max(width, abs(low) * 1e-3)
    found = ticks(low, high, target)
    assert 2 <= len(found) <= 2 * target + 3
    slack = 1e-6 * (high - low)
    assert low - slack <= found[0]
    assert found[-1] <= high + slack
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert max(steps) - min(steps) <= 1e-6 * (high - low)
    mantissa = float(f"{steps[0]:.6g}") / 10 ** math.floor(math.log10(float(f"{steps[0]:.6g}")))
    assert min(abs(mantissa - factor) for factor in (1, 2, 2.5, 5, 10)) < 1e-3


def test_ticks_by_hand() -> None:
    assert ticks(0.03, 0.127) == [0.04, 0.06, 0.08, 0.1, 0.12]
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(3, 3) == [3]


@given(st.lists(values, min_size=1, max_size=20))
def test_limits_hold_every_value(numbers: list[float]) -> None:
    low, high = limits(numbers)
    assert low <= min(numbers)
    assert max(numbers) <= high
    assert low < high


@given(st.lists(values, min_size=1, max_size=20))
def test_limits_of_bars_hold_zero(numbers: list[float]) -> None:
    low, high = limits(numbers, zero=True)
    assert low <= 0 <= high


def test_limits_of_nothing() -> None:
    assert limits([]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (12_000, "12k"), (-2500, "-2.5k"), (3e6, "3M"), (0.001, "0.001")],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(12_000.0, "12,000"), (0.123456, "0.12346"), (-3.0, "-3")]
)
def test_exact(value: float, text: str) -> None:
    assert exact(value) == text


@given(st.floats(1e-9, 1e6), st.floats(1.05, 1e9), st.integers(3, 8))
def test_log_ticks_are_inside_and_few(low: float, factor: float, target: int) -> None:
    found = log_ticks(low, low * factor, target)
    assert 2 <= len(found) <= 2 * target + 3
    assert found == sorted(found)
    assert low * (1 - 1e-6) <= found[0]
    assert found[-1] <= low * factor * (1 + 1e-6)


def test_log_ticks_by_hand() -> None:
    assert log_ticks(100, 11_000) == [100, 200, 500, 1000, 2000, 5000, 10_000]
    assert log_ticks(1e-6, 1e3) == [1e-6, 1e-4, 1e-2, 1, 100]
    assert log_ticks(2.1, 2.6) == [2.1, 2.2, 2.3, 2.4, 2.5, 2.6]


def test_log_limits_leave_out_what_has_no_logarithm() -> None:
    low, high = log_limits([0.0, -3.0, 0.5, 8.0])
    assert 0 < low < 0.5
    assert high > 8
    assert log_limits([0.0]) == (0.1, 1.0)
