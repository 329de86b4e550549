from __future__ import annotations

import pytest

from crossbatch.reports import formatting
from crossbatch.reports.comparison import Estimate, Gain


def test_percent() -> None:
    assert formatting.percent(Estimate(0.12345, None)) == "12.35"
    assert formatting.percent(Estimate(0.1, 0.0049)) == "10.00 ± 0.49"
    assert formatting.percent(None) == "–"


def test_amount_keeps_about_three_figures() -> None:
    assert formatting.amount(Estimate(4.204, 0.1)) == "4.20 ± 0.10"
    assert formatting.amount(Estimate(123.45, None)) == "123.5"


@pytest.mark.parametrize(
    ("value", "text"), [(0.032, "+3.2"), (-0.01, "−1.0"), (-0.0001, "+0.0"), (0.0, "+0.0")]
)
def test_signed_has_no_negative_zero(value: float, text: str) -> None:
    assert formatting.signed(value) == text


@pytest.mark.parametrize(
    ("gain", "text", "verdict"),
    [
        (Gain(0.05, (0.02, 0.08)), "+5.0 % [+2.0, +8.0]", "better"),
        (Gain(-0.05, (-0.08, -0.02)), "−5.0 % [−8.0, −2.0]", "worse"),
        (Gain(0.01, (-0.02, 0.04)), "+1.0 % [−2.0, +4.0]", "unclear"),
        (Gain(0.01, (0.0, 0.04)), "+1.0 % [+0.0, +4.0]", "unclear"),
        (Gain(0.5, None), "+50.0 %", ""),
        (None, "–", ""),
    ],
)
def test_gain_and_verdict(gain: Gain | None, text: str, verdict: str) -> None:
    assert formatting.gain(gain) == text
    assert formatting.verdict(gain) == verdict
