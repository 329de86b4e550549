import math

import pytest
import torch

from crossbatch.training.optimizers import SCHEDULES


def at(name: str, step: float, total: int = 100) -> float:
    return float(SCHEDULES[name](0.2, torch.tensor(step, dtype=torch.float64), total))


def test_constant_stays():
    assert [at("constant", step) for step in (1.0, 50.0, 500.0)] == [0.2, 0.2, 0.2]


def test_cosine_by_hand():
    assert at("cosine", 0.0) == pytest.approx(0.2)
    assert at("cosine", 50.0) == pytest.approx(0.1)
    assert at("cosine", 25.0) == pytest.approx(0.1 * (1 + math.sqrt(0.5)))
    assert at("cosine", 130.0) == pytest.approx(0.0, abs=1e-12)


def test_exponential_ends_at_a_hundredth():
    assert at("exponential", 50.0) == pytest.approx(0.02)
    assert at("exponential", 100.0) == pytest.approx(0.002)
    assert at("exponential", 900.0) == pytest.approx(0.002)
