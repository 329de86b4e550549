"""What must not change the loss, whatever the batch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.negatives import Candidates, sampled_softmax_loss

MASKS = ("both", "batch", "none")
SEEDS = st.integers(0, 10_000)
hypothesis = settings(deadline=None, max_examples=25)


def shifted(candidates, by, scale=1.0):
    return Candidates(
        candidates.embeddings * scale,
        candidates.item_ids,
        candidates.log_q + by,
        cached=candidates.cached,
    )


def value_and_gradients(p, positives, negatives, **options):
    rows = sampled_softmax_loss(p.users, positives, negatives, reduction="none", **options)
    return rows, *torch.autograd.grad(rows.sum(), (p.users, p.positives.embeddings))


def assert_all_close(first, second):
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)


@hypothesis
@given(seed=SEEDS, factor=st.floats(1e-6, 1e6), mask=st.sampled_from(MASKS))
def test_a_constant_factor_on_q_cancels(problem, seed, factor, mask):
    p = problem(seed)
    by = math.log(factor)
    positives, cached = shifted(p.positives, by), shifted(p.cached, by)
    assert_all_close(
        value_and_gradients(p, p.positives, p.positives + p.cached, mask=mask),
        value_and_gradients(p, positives, positives + cached, mask=mask),
    )


@hypothesis
@given(seed=SEEDS, constant=st.floats(-50, 50))
def test_a_constant_on_all_scores_of_a_row_cancels(problem, seed, constant):
    """One more coordinate, 1 in every item and c in the user, adds c to all scores of the row."""
    p = problem(seed)

    def widened(c):
        ones = torch.ones(len(c), 1, dtype=torch.float64)
        return Candidates(torch.cat([c.embeddings, ones], 1), c.item_ids, c.log_q, cached=c.cached)

    users = torch.cat([p.users, torch.full((5, 1), constant, dtype=torch.float64)], 1)
    torch.testing.assert_close(
        sampled_softmax_loss(users, widened(p.positives), widened(p.positives) + widened(p.cached)),
        sampled_softmax_loss(p.users, p.positives, p.positives + p.cached),
    )


@hypothesis
@given(seed=SEEDS, mask=st.sampled_from(MASKS))
def test_order_of_the_bank_does_not_matter(problem, seed, mask):
    p = problem(seed)
    order = torch.randperm(len(p.cached))
    shuffled = Candidates(
        p.cached.embeddings[order], p.cached.item_ids[order], p.cached.log_q[order], cached=True
    )
    assert_all_close(
        value_and_gradients(p, p.positives, p.positives + p.cached, mask=mask),
        value_and_gradients(p, p.positives, p.positives + shuffled, mask=mask),
    )


@hypothesis
@given(seed=SEEDS)
def test_constant_q_corrects_nothing(problem, seed):
    p = problem(seed)
    constant = torch.full((5,), -3.7, dtype=torch.float64)
    with_q = Candidates(p.positives.embeddings, p.positives.item_ids, constant)
    without = Candidates(p.positives.embeddings, p.positives.item_ids, 0 * constant)
    torch.testing.assert_close(
        sampled_softmax_loss(p.users, with_q, with_q),
        sampled_softmax_loss(p.users, without, without),
    )


@hypothesis
@given(seed=SEEDS)
def test_a_bank_of_current_vectors_is_a_larger_batch_for_the_user(problem, seed):
    """If the bank holds another batch's current vectors, value and user gradient are those of the
    concatenated batch; the item gradient is not."""
    p = problem(seed, B=6)
    half = [
        Candidates(p.positives.embeddings[s], p.positives.item_ids[s], p.positives.log_q[s])
        for s in (slice(0, 3), slice(3, 6))
    ]
    together = sampled_softmax_loss(p.users, p.positives, p.positives, reduction="none")[:3].sum()
    users = p.users[:3]
    apart = sampled_softmax_loss(users, half[0], half[0] + half[1].detached(), reduction="sum")
    torch.testing.assert_close(apart, together)
    torch.testing.assert_close(
        torch.autograd.grad(apart, p.users, retain_graph=True)[0],
        torch.autograd.grad(together, p.users, retain_graph=True)[0],
    )
    item_side = [torch.autograd.grad(x, p.positives.embeddings)[0] for x in (apart, together)]
    assert not torch.allclose(item_side[0][3:], item_side[1][3:])
    assert not item_side[0][3:].any()


@hypothesis
@given(seed=SEEDS, temperature=st.floats(0.02, 50))
def test_temperature_divides_the_score_alone(problem, seed, temperature):
    p = problem(seed)
    scaled = p.users / temperature
    torch.testing.assert_close(
        sampled_softmax_loss(p.users, p.positives, p.negatives, temperature=temperature),
        sampled_softmax_loss(scaled, p.positives, p.negatives),
    )


def test_a_learned_temperature_gets_its_gradient(problem):
    p = problem()
    temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)

    def loss(t):
        return sampled_softmax_loss(p.users, p.positives, p.negatives, temperature=t)

    (got,) = torch.autograd.grad(loss(temperature), temperature)
    step = 1e-6
    expected = (loss(0.4 + step) - loss(0.4 - step)) / (2 * step)
    assert float(got) == pytest.approx(float(expected.detach()), rel=1e-6)
