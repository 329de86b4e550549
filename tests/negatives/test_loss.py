"""The loss against hand-computed numbers and brute force, and in its corners."""

import math

import pytest
import torch

from crossbatch.negatives import Candidates, sampled_softmax_loss

MASKS = ("both", "batch", "none")


def columns(scores, ids, q=None, *, cached=False):
    """Columns in one dimension: with u = 1 the embedding is the score."""
    log_q = torch.zeros(len(ids)) if q is None else torch.tensor(q).log()
    return Candidates(torch.tensor(scores).unsqueeze(1), torch.tensor(ids), log_q, cached=cached)


ONE_USER = torch.ones(1, 1)


# Equations of the paper, by hand.


def test_eq_1_uniform_negatives():
    # −log(e² / (e² + e¹ + e⁰)) = log(1 + e⁻¹ + e⁻²) = log 1.503215 = 0.407606
    loss = sampled_softmax_loss(ONE_USER, columns([2.0], [7]), columns([1.0, 0.0], [8, 9]))
    assert float(loss) == pytest.approx(0.407606, abs=1e-6)


def test_eq_2_is_the_mean_over_the_batch():
    # Row 0: s' = [1, 0] → log(1 + e⁻¹) = 0.313262; row 1: s' = [0, 2] → log(1 + e⁻²) = 0.126928.
    u, v = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    batch = Candidates(v, torch.tensor([1, 2]), torch.zeros(2))
    rows = sampled_softmax_loss(u, batch, batch, reduction="none")
    assert rows.tolist() == pytest.approx([0.313262, 0.126928], abs=1e-6)
    assert float(sampled_softmax_loss(u, batch, batch)) == pytest.approx(0.220095, abs=1e-6)
    total = sampled_softmax_loss(u, batch, batch, reduction="sum")
    assert float(total) == pytest.approx(0.440190, abs=1e-6)


def test_eqs_3_and_4_in_batch_with_correction():
    # s = [1, 0], q = [.5, .25]: s' = [1 + log 2, log 4] = [1.693147, 1.386294]
    # loss = log(1 + e^{1.386294 − 1.693147}) = log(1 + 0.735759) = 0.551445
    loss = sampled_softmax_loss(ONE_USER, columns([1.0], [1], [0.5]), columns([0.0], [2], [0.25]))
    assert float(loss) == pytest.approx(0.551445, abs=1e-6)


def test_eq_9_batch_and_bank_without_the_positive():
    # Batch {1: s 1, q .5; 2: s 0, q .25}; bank {1: s 3, q .5; 3: s −1, q .125}; row's positive 1.
    # e^{s'}: own e/.5 = 5.436564; item 2: 1/.25 = 4; item 3: e⁻¹/.125 = 2.943036; copy of 1: 0.
    # loss = log((5.436564 + 4 + 2.943036) / 5.436564) = log 2.277100 = 0.822903
    batch = columns([1.0, 0.0], [1, 2], [0.5, 0.25])
    bank = columns([3.0, -1.0], [1, 3], [0.5, 0.125], cached=True)
    users = torch.ones(2, 1)
    rows = sampled_softmax_loss(users, batch, batch + bank, reduction="none")
    assert float(rows[0]) == pytest.approx(0.822903, abs=1e-6)
    # With bank copies kept, mask="batch": + e³/.5 = 40.171074 → log(52.550674 / 5.436564).
    rows = sampled_softmax_loss(users, batch, batch + bank, reduction="none", mask="batch")
    assert float(rows[0]) == pytest.approx(math.log(52.550674 / 5.436564), abs=1e-6)


def test_mask_none_leaves_out_the_own_column_alone():
    # Ids 1, 1: row 0 keeps column 1 as a negative: log(1 + e^{0 − 1}) = 0.313262.
    batch = columns([1.0, 0.0], [1, 1])
    rows = sampled_softmax_loss(torch.ones(2, 1), batch, batch, reduction="none", mask="none")
    assert rows.tolist() == pytest.approx([0.313262, 1.313262], abs=1e-6)
    assert sampled_softmax_loss(torch.ones(2, 1), batch, batch, reduction="none").tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1.0, 0.07])
def test_distinct_ids_without_counts_is_cross_entropy(dtype, temperature):
    u, v = torch.randn(2, 16, 8, dtype=dtype, requires_grad=True).unbind()
    u, v = u.detach().requires_grad_(), v.detach().requires_grad_()
    batch = Candidates(v, torch.arange(16), torch.zeros(16))
    loss = sampled_softmax_loss(u, batch, batch, temperature=temperature)
    expected = torch.nn.functional.cross_entropy(u @ v.T / temperature, torch.arange(16))
    torch.testing.assert_close(loss, expected)
    gradients = torch.autograd.grad(loss, (u, v))
    for got, want in zip(gradients, torch.autograd.grad(expected, (u, v)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


# Brute force.


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chunk_size", [None, 1, 4])
def test_equals_brute_force(problem, oracle, mask, seed, chunk_size):
    p = problem(seed)
    exclude = torch.rand(5, len(p.negatives)) < 0.2
    weight = torch.rand(5, dtype=torch.float64)
    truth = oracle(
        p.users,
        p.positives,
        p.negatives,
        temperature=0.3,
        mask=mask,
        exclude=exclude,
        weight=weight,
    )
    rows = sampled_softmax_loss(
        p.users,
        p.positives,
        p.negatives,
        temperature=0.3,
        mask=mask,
        exclude=exclude,
        reduction="none",
        chunk_size=chunk_size,
    )
    torch.testing.assert_close(rows, truth.losses)
    leaves = (p.users, p.positives.embeddings, p.extra.embeddings)
    got = torch.autograd.grad(rows @ weight, leaves)
    torch.testing.assert_close(got[0], truth.users)
    torch.testing.assert_close(got[1], truth.positives + truth.negatives[:5])
    torch.testing.assert_close(got[2], truth.negatives[-3:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_16_bit_vectors_have_32_bit_logits(problem, oracle, dtype, chunk_size):
    """Rounded once, as inputs, and never again: not by the temperature, not by the logits."""
    p = problem(dtype=dtype, d=16)
    truth = oracle(p.users, p.positives, p.negatives, temperature=0.07)
    rows = sampled_softmax_loss(
        p.users,
        p.positives,
        p.negatives,
        temperature=0.07,
        reduction="none",
        chunk_size=chunk_size,
    )
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.double(), truth.losses, rtol=1e-5, atol=1e-5)
    grad_u, grad_v = torch.autograd.grad(rows.sum(), (p.users, p.positives.embeddings))
    assert grad_u.dtype == grad_v.dtype == dtype
    # Two rounded gradients, as a positive and as a negative, are added: eps of the larger one.
    largest = float(truth.positives.abs().max())
    tolerance = {"rtol": 0.0, "atol": 2 * torch.finfo(dtype).eps * largest}
    torch.testing.assert_close(grad_u.double(), truth.users, **tolerance)
    torch.testing.assert_close(grad_v.double(), truth.positives + truth.negatives[:5], **tolerance)


def test_autocast_does_not_lower_the_precision(problem):
    p = problem(dtype=torch.float32, d=32, B=16, M=64)
    with torch.autocast("cpu", torch.bfloat16):
        inside = sampled_softmax_loss(p.users, p.positives, p.negatives, temperature=0.05)
        gradient = torch.autograd.grad(inside, p.users)[0]
    outside = sampled_softmax_loss(p.users, p.positives, p.negatives, temperature=0.05)
    assert torch.equal(inside, outside)
    assert torch.equal(gradient, torch.autograd.grad(outside, p.users)[0])


def test_half_precision_does_not_overflow_when_divided_by_the_temperature():
    u, v = torch.full((1, 1), 2000.0, dtype=torch.float16), torch.full((1, 1), 0.001)
    batch = Candidates(v.half(), torch.tensor([1]), torch.zeros(1))
    other = Candidates(-v.half(), torch.tensor([2]), torch.zeros(1))
    loss = sampled_softmax_loss(u, batch, other, temperature=0.01)  # 2000/0.01 > 65504
    assert float(loss) == pytest.approx(0.0, abs=1e-6)


# Corners.

NOTHING = Candidates(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), torch.empty(0))


def test_one_row_without_other_columns_is_exactly_zero():
    v = torch.randn(1, 4, requires_grad=True)
    batch = Candidates(v, torch.tensor([3]), torch.tensor([-9.0]))
    loss = sampled_softmax_loss(torch.randn(1, 4), batch, batch)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not v.grad.any()


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_no_columns_at_all(chunk_size):
    u = torch.randn(3, 4, requires_grad=True)
    batch = Candidates(torch.randn(3, 4), torch.arange(3), torch.zeros(3))
    loss = sampled_softmax_loss(u, batch, NOTHING, chunk_size=chunk_size)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not u.grad.any()


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_rows_with_every_negative_masked_have_loss_and_gradient_zero(problem, chunk_size):
    p = problem()
    exclude = torch.zeros(5, len(p.negatives), dtype=torch.bool)
    exclude[2] = True
    rows = sampled_softmax_loss(
        p.users,
        p.positives,
        p.negatives,
        exclude=exclude,
        reduction="none",
        chunk_size=chunk_size,
    )
    assert rows[2].tolist() == 0.0
    assert rows[0].tolist() > 0.0
    gradient = torch.autograd.grad(rows.sum(), p.users)[0]
    assert torch.isfinite(gradient).all()
    assert float(gradient[2].abs().max()) < 1e-15


@pytest.mark.parametrize("chunk_size", [None, 1])
@pytest.mark.parametrize(("own", "other"), [(1e4, -1e4), (-1e4, 1e4), (3e4, 3e4)])
def test_extreme_logits_stay_exact(own, other, chunk_size):
    u = torch.tensor([[1.0]], requires_grad=True)
    v = torch.tensor([[own]], requires_grad=True)
    batch = Candidates(v, torch.tensor([1]), torch.zeros(1))
    negatives = batch + columns([other, other - 5.0], [2, 3])
    loss = sampled_softmax_loss(u, batch, negatives, chunk_size=chunk_size)
    loss.backward()
    # log(1 + e^{other − own} + e^{other − 5 − own})
    expected = {2e4: 0.0, -2e4: 2e4 + math.log1p(math.exp(-5)), 0.0: math.log(2 + math.exp(-5))}
    assert float(loss.detach()) == pytest.approx(expected[own - other], rel=1e-6)
    assert torch.isfinite(u.grad).all()
    assert torch.isfinite(v.grad).all()


def test_a_small_loss_survives_large_logits():
    # log(1 + e⁻⁸) = 3.3540637e-4 next to logits of 500: log Z − s would keep three digits of it.
    loss = sampled_softmax_loss(ONE_USER, columns([500.0], [1]), columns([492.0], [2]))
    assert float(loss) == pytest.approx(3.3540637e-4, rel=1e-3)


def test_evaluation_needs_no_gradient(problem):
    p = problem()
    with torch.no_grad():
        loss = sampled_softmax_loss(p.users, p.positives, p.negatives)
    assert not loss.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("mask", MASKS)
def test_cuda_equals_cpu(problem, mask):
    p = problem(dtype=torch.float64)

    def on_cuda(c):
        return Candidates(c.embeddings.cuda(), c.item_ids.cuda(), c.log_q.cuda(), cached=c.cached)

    here = sampled_softmax_loss(p.users, p.positives, p.negatives, mask=mask)
    positives = on_cuda(p.positives)
    negatives = positives + on_cuda(p.cached) + on_cuda(p.extra)
    there = sampled_softmax_loss(p.users.cuda(), positives, negatives, mask=mask)
    torch.testing.assert_close(there.cpu(), here)
