"""The compiled softmax against the definition in float64, which knows nothing of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.negatives import Candidates, fused
from crossbatch.negatives.loss import row_losses

pytest.importorskip("numba", exc_type=ImportError)

import numpy as np

from crossbatch.negatives.softmax_kernel import NOTHING, _exponentials, softmax_rows


def problem(seed: int, B: int, M: int, scale: float):
    """Users, positives and a bank with repeats of the positives, in float32."""
    rng = torch.Generator().manual_seed(seed)
    u, v = (torch.randn(B, 5, generator=rng) * scale for _ in range(2))
    ids = torch.randint(1, B + 2, (B,), generator=rng)
    positives = Candidates(v.requires_grad_(), ids, torch.randn(B, generator=rng))
    bank = Candidates(
        torch.randn(M, 5, generator=rng) * scale,
        torch.randint(1, 3 * B, (M,), generator=rng),
        torch.randn(M, generator=rng),
        cached=True,
    )
    return u.requires_grad_(), positives, positives + bank


def doubled(u: torch.Tensor, positives: Candidates, negatives: Candidates):
    v = positives.embeddings.detach().double().requires_grad_()
    own = Candidates(v, positives.item_ids, positives.log_q.double())
    bank = negatives.parts[1]
    cached = Candidates(bank.embeddings.double(), bank.item_ids, bank.log_q.double(), cached=True)
    return u.detach().double().requires_grad_(), own, own + cached


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    B=st.integers(1, 9),
    M=st.integers(1, 60),
    scale=st.sampled_from([0.0, 1.0, 5.0]),
    excluding=st.booleans(),
)
def test_losses_and_gradients_are_those_of_the_definition(seed, B, M, scale, excluding):
    u, positives, negatives = problem(seed, B, M, scale)
    exclude = torch.rand(B, B + M) < 0.3 if excluding else None
    losses = fused.FusedLosses.run(u, positives, negatives, "both", exclude)
    u64, own64, negatives64 = doubled(u, positives, negatives)
    truth = row_losses(u64, own64, negatives64, exclude=exclude)
    torch.testing.assert_close(losses.double(), truth, rtol=1e-5, atol=2e-5)
    got = torch.autograd.grad(losses.sum(), (u, positives.embeddings))
    want = torch.autograd.grad(truth.sum(), (u64, own64.embeddings))
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


def test_the_kernel_is_what_runs(monkeypatch):
    """Otherwise the test above would hold torch against torch."""
    monkeypatch.setattr(fused, "_softmax_", None)
    u, positives, negatives = problem(0, 4, 6, 1.0)
    fused.FusedLosses.run(u, positives, negatives, "both", None)


def test_exponentials_are_exact_to_a_few_units_in_the_last_place():
    x = np.linspace(-87, 0, 300_001, dtype=np.float32)
    found = x.copy()
    total = _exponentials(found, np.float32(0))
    truth = np.exp(x.astype(np.float64))
    assert np.abs(found / truth - 1).max() < 4e-7
    assert total == pytest.approx(truth.sum(), rel=1e-5)


def test_far_below_the_peak_is_exactly_nothing():
    x = np.array([-np.inf, -1e30, -100.0, -88.5, 0.0], dtype=np.float32)
    _exponentials(x, np.float32(0))
    assert x.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_loss(poison):
    block = np.zeros((2, 5), dtype=np.float32)
    block[1, 2] = poison
    losses = np.empty(2, dtype=np.float32)
    keys = np.array([7, 8]), np.array([1, 2, 3, 4])
    zeros = np.zeros(4, np.float32)
    softmax_rows(block, zeros, *keys, NOTHING, zeros[:2], -1, 1.0, losses)
    assert losses[0] == pytest.approx(np.log(5))
    assert not np.isfinite(losses[1])


def test_keys_that_share_their_last_bits_are_told_apart():
    block = np.zeros((2, 4), dtype=np.float32)
    losses = np.empty(2, dtype=np.float32)
    rows, columns = np.array([5, 5 + 1024]), np.array([5, 5 + 1024, 5 + 2048])
    zeros = np.zeros(3, np.float32)
    softmax_rows(block, zeros, rows, columns, NOTHING, zeros[:2], -1, 1.0, losses)
    third, own = pytest.approx(1 / 3), pytest.approx(-2 / 3)
    assert block.tolist() == [[0.0, third, third, own], [third, 0.0, third, own]]


def test_an_excluded_column_has_no_part_but_the_own_positive_keeps_its_own():
    block = np.zeros((2, 4), dtype=np.float32)
    losses, zeros = np.empty(2, dtype=np.float32), np.zeros(3, np.float32)
    exclude = np.array([[True, False, True], [False, False, False]])
    softmax_rows(
        block, zeros, np.array([7, 8]), np.array([7, 8, 9]), exclude, zeros[:2], 0, 1.0, losses
    )
    assert losses.tolist() == pytest.approx([np.log(2), np.log(3)])
    third = pytest.approx(1 / 3)
    assert block[:, :3].tolist() == [[-0.5, 0.5, 0.0], [third, pytest.approx(-2 / 3), third]]
