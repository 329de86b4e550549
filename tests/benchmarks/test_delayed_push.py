"""Sums of gradients over steps, compared by hand."""

import math

import pytest
import torch

from delayed_push import Sums


def test_sums_are_compared_as_one_vector_and_step_by_step():
    sums = Sums()
    for mine, theirs in (([3.0, 0.0], [1.0, 0.0]), ([-1.0, 2.0], [1.0, 0.0])):
        sums.add("rule", [torch.tensor(mine)])
        sums.add("true", [torch.tensor(theirs[:1]), torch.tensor(theirs[1:])])
    found = sums.compare("rule", "true")  # (2, 2) and (2, 0)
    assert found["cosine"] == pytest.approx(1 / math.sqrt(2))
    assert found["length"] == pytest.approx(math.sqrt(2))
    assert found["length of a step"] == pytest.approx(math.sqrt((9 + 5) / 2))
