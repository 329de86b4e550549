"""Compiled shortcuts of the samplers against the torch operations that stand in for them."""

import math

import pytest
import torch

from crossbatch.negatives import Candidates, MemoryBank, frequency, memory_bank, uniform
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


@pytest.mark.parametrize("sizes", [[3, 4, 2, 3, 3], [9, 1, 12]])
def test_the_same_rows_are_kept(sizes, monkeypatch):
    def bank():
        torch.manual_seed(0)
        kept = MemoryBank(7, dim=5)
        for n in sizes:
            kept.enqueue(Candidates(torch.randn(n, 5), torch.randint(1, 99, (n,)), torch.randn(n)))
        return kept.state_dict()

    compiled = bank()
    monkeypatch.setattr(memory_bank, "HAS_NUMBA", False)
    plain = bank()
    assert all(torch.equal(compiled[name], value) for name, value in plain.items())


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_bank_that_refuses_is_unchanged(broken, compiled, monkeypatch):
    monkeypatch.setattr(memory_bank, "HAS_NUMBA", compiled)
    bank = MemoryBank(7, dim=5)
    rows = torch.zeros(2, 5)
    rows[1, 3] = broken
    with pytest.raises(ValueError, match="1 rows that are not finite"):
        bank.enqueue(Candidates(rows, torch.tensor([1, 2]), torch.zeros(2)))
    assert len(bank) == int(bank.step) == 0
