"""The rules of the bank study that are not part of the library."""

import pytest
import torch

import variants
from crossbatch.negatives import Candidates
from variants import RULES, Step, drawn_by_hardness, semi_hard

B, M, D = 6, 40, 4


@pytest.fixture
def step():
    torch.manual_seed(0)
    users = torch.randn(B, D, requires_grad=True)
    positives = Candidates(torch.randn(B, D), torch.arange(1, B + 1), -torch.rand(B))
    ids = torch.arange(1, M + 1)  # the first B are the rows' own items
    items = Candidates(torch.randn(M, D), ids, -torch.rand(M), cached=True)
    return Step(users, positives, items, items, temperature=0.7)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_gives_users_a_gradient(step, rule):
    loss = RULES[rule](step)
    loss.backward()
    assert torch.isfinite(loss)
    assert float(step.users.grad.norm()) > 0


def test_draws_by_hardness_estimate_the_gradient_over_the_whole_bank(step, monkeypatch):
    monkeypatch.setattr(variants, "HARDEST", 5_000)  # of 40 columns: the noise is gone
    (found,) = torch.autograd.grad(drawn_by_hardness(step), step.users)
    (truth,) = torch.autograd.grad(variants.balanced(step), step.users)
    torch.testing.assert_close(found, truth, rtol=0.1, atol=0.02)


def test_semi_hard_leaves_out_the_hardest(step, monkeypatch):
    monkeypatch.setattr(variants, "TOO_HARD", 3)
    monkeypatch.setattr(variants, "HARDEST", M - 3)
    order = variants._by_hardness(step)
    scores = (step.users @ step.items.embeddings.T).detach()
    scores[torch.arange(B), torch.arange(B)] = -torch.inf  # a row's own item is no negative
    assert order.tolist() == scores.amax(dim=0).argsort(descending=True).tolist()
    kept = order[3:]
    rest = Candidates(
        step.items.embeddings[kept], step.items.item_ids[kept], step.items.log_q[kept], cached=True
    )
    again = Step(step.users, step.positives, rest, rest, step.temperature)
    torch.testing.assert_close(semi_hard(step), variants.balanced(again))


def test_columns_above_the_similarity_ceiling_are_no_negatives(step):
    twin = torch.cat([step.positives.embeddings, step.items.embeddings[B:]])
    ids = torch.cat([torch.arange(100, 100 + B), step.items.item_ids[B:]])  # not masked by id
    cached = Candidates(twin, ids, step.items.log_q, cached=True)
    again = Step(step.users.detach(), step.positives, cached, cached, step.temperature)
    assert float(variants.ceiling(again)) < float(variants.balanced(again))
