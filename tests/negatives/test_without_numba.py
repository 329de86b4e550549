"""Compiled shortcuts of the samplers against the torch operations that stand in for them."""

import pytest
import torch

from crossbatch.negatives import frequency, uniform
from crossbatch.negatives.frequency import LogFrequency

pytest.importorskip("numba")


@pytest.mark.parametrize("num_items", [3, 1_000, 5_000_000])
def test_the_same_items_are_drawn(num_items, monkeypatch):
    def drawn():
        torch.manual_seed(num_items)
        return [uniform.draw_distinct(num_items, 400, torch.device("cpu")) for _ in range(3)]

    compiled = drawn()
    monkeypatch.setattr(uniform, "HAS_NUMBA", False)
    assert all(torch.equal(one, other) for one, other in zip(compiled, drawn(), strict=True))


def test_the_same_log_q_is_found(monkeypatch):
    law, ids = LogFrequency(torch.tensor([0, 3, 1, 4])), torch.tensor([3, 1, 1, 2])
    compiled = law(ids)
    monkeypatch.setattr(frequency, "HAS_NUMBA", False)
    assert torch.equal(compiled, law(ids))
