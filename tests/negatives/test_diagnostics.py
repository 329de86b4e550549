import math

import pytest
import torch

from crossbatch.negatives import Candidates, MemoryBank, diagnose, diagnose_bank

# Two rows in two dimensions; scores u·v: row 0 → [2, 0], row 1 → [0, 1]; bank scores below.
U = torch.eye(2)
BATCH = Candidates(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 2]), torch.zeros(2))
BANK = Candidates(
    torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([3, 1]), torch.zeros(2), cached=True
)


def test_by_hand():
    got = diagnose(U, BATCH, BATCH + BANK)
    # Row 0 (id 1): negatives: batch column 2 (0), bank item 3 (1); bank copy of 1 masked.
    # Row 1 (id 2): negatives: batch column 1 (0), bank item 3 (0), bank item 1 (3).
    assert got["negatives_per_row"] == 2.5
    assert got["masked_share"] == pytest.approx(3 / 8)
    p0 = [1 / (1 + math.e), math.e / (1 + math.e)]
    Z = 2 + math.exp(3)
    p1 = [1 / Z, 1 / Z, math.exp(3) / Z]
    effective = [math.exp(-sum(x * math.log(x) for x in p)) for p in (p0, p1)]
    assert got["effective_negatives"] == pytest.approx(sum(effective) / 2, rel=1e-5)
    assert got["hardness"] == pytest.approx(((1 - 2) + (3 - 1)) / 2)
    assert got["bank_mass_share"] == pytest.approx((p0[1] + p1[1] + p1[2]) / 2, rel=1e-5)
    assert got["item_norm"] == 1.5
    assert got["mean_direction_share"] == pytest.approx(math.sqrt(0.5), rel=1e-5)


def test_log_q_and_temperature_enter_the_logits():
    batch = Candidates(BATCH.embeddings, BATCH.item_ids, torch.tensor([-1.0, -2.0]))
    got = diagnose(U, batch, batch, temperature=0.5)
    # Row 0: 0 + 2 − (4 + 1) = −3; row 1: 0 + 1 − (2 + 2) = −3.
    assert got["hardness"] == pytest.approx(-3.0)


def test_gradient_ratio_is_that_of_the_loss(problem):
    from crossbatch.negatives import sampled_softmax_loss

    p = problem(dtype=torch.float32)
    negatives = p.positives + p.cached
    loss = sampled_softmax_loss(p.users, p.positives, negatives, temperature=0.7)
    user, item = torch.autograd.grad(loss, (p.users, p.positives.embeddings))
    got = diagnose(p.users, p.positives, negatives, temperature=0.7)
    assert got["gradient_ratio"] == pytest.approx(float(item.norm() / user.norm()), rel=1e-4)
    assert p.users.grad is None


def test_collapsed_items_are_seen():
    v = torch.ones(4, 3) * torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    batch = Candidates(v, torch.arange(4), torch.zeros(4))
    got = diagnose(torch.randn(4, 3), batch, batch)
    assert got["mean_direction_share"] == pytest.approx(1.0)


def test_rows_without_negatives_are_left_out():
    one = Candidates(torch.ones(1, 2), torch.tensor([1]), torch.zeros(1))
    got = diagnose(torch.ones(1, 2), one, one)
    assert got["negatives_per_row"] == got["effective_negatives"] == got["hardness"] == 0.0
    assert all(math.isfinite(value) for value in got.values())


def test_bank_by_hand():
    bank = MemoryBank(10, dim=2)
    old = Candidates(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 2]), torch.zeros(2))
    bank.enqueue(old)
    bank.enqueue(BATCH)
    got = diagnose_bank(bank, BATCH)
    # Item 1: ‖(3, 0) − (2, 0)‖ / 2 = .5; item 2 unchanged: 0. The batch's own rows do not count.
    assert got == {"bank_fill": 4.0, "bank_mean_age": 0.5, "bank_staleness": 0.25}


def test_bank_re_encoded_by_hand():
    bank = MemoryBank(10, dim=2)
    bank.enqueue(BATCH)  # (2, 0) and (0, 1)
    table = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    got = diagnose_bank(bank, BATCH, encode=lambda ids: table[ids])
    assert got["bank_staleness"] == pytest.approx((0 + 0.5) / 2)


def test_an_empty_bank_has_no_staleness():
    got = diagnose_bank(MemoryBank(10, dim=2), BATCH)
    assert got["bank_fill"] == got["bank_mean_age"] == 0.0
    assert math.isnan(got["bank_staleness"])
    encoded = diagnose_bank(MemoryBank(10, dim=2), BATCH, encode=lambda ids: torch.zeros(0, 2))
    assert math.isnan(encoded["bank_staleness"])
