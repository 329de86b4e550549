"""Drift by hand; the lemma against closed forms and against plain autograd."""

import math

import pytest
import torch
from torch import nn

from crossbatch.evaluation.drift import feature_drift, gradient_error, jacobian_gram


def test_drift_is_the_sum_of_row_distances():
    before = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 2.0]])
    now = torch.tensor([[3.0, 4.0], [1.0, 0.0], [2.0, 3.0]])
    drift = feature_drift(now, before)
    assert drift.total == pytest.approx(5 + 0 + 1)
    assert drift.mean == pytest.approx(2.0)
    assert drift.relative == pytest.approx(6 / (5 + 1 + math.sqrt(13)))


def test_drift_is_not_the_norm_of_the_whole_difference():
    """Sum of norms, not norm of the sum: opposite moves do not cancel."""
    before = torch.zeros(2, 1)
    assert feature_drift(torch.tensor([[1.0], [-1.0]]), before).total == 2.0


def test_drift_of_nothing_and_of_no_move():
    assert feature_drift(torch.zeros(0, 3), torch.zeros(0, 3)).mean == 0.0
    assert feature_drift(torch.ones(4, 3), torch.ones(4, 3)).relative == 0.0
    assert feature_drift(torch.zeros(2, 3), torch.ones(2, 3)).relative == math.inf


def test_drift_scales_with_the_vectors_and_its_relative_form_does_not():
    torch.manual_seed(0)
    now, before = torch.randn(50, 8), torch.randn(50, 8)
    one, ten = feature_drift(now, before), feature_drift(10 * now, 10 * before)
    assert ten.total == pytest.approx(10 * one.total, rel=1e-5)
    assert ten.relative == pytest.approx(one.relative, rel=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_linear_tower_has_the_closed_form(bias):
    """u = W x + b: J Jᵀ = (‖x‖² + [b]) I, so deviation = bound = (‖x‖² + [b]) ‖v̂ − v‖²."""
    torch.manual_seed(1)
    tower = nn.Linear(5, 3, bias=bias).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    fresh = torch.randn(6, 3, dtype=torch.float64)
    cached = fresh + 0.1 * torch.randn(6, 3, dtype=torch.float64)
    error = gradient_error(tower(x), tower.parameters(), fresh, cached)
    constant = x.square().sum(dim=1) + float(bias)  # [B]
    expected = constant[:, None] * (cached - fresh).square().sum(dim=1)
    torch.testing.assert_close(error.deviation, expected)
    torch.testing.assert_close(error.bound, expected)
    torch.testing.assert_close(error.jacobian, constant)
    torch.testing.assert_close(error.constant, constant[:, None].expand(4, 6))
    # ∂(uᵀv)/∂W = v xᵀ, and v by the bias.
    torch.testing.assert_close(error.gradient, constant[:, None] * fresh.square().sum(dim=1))


def deep_tower():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5)).double()


def test_deviation_equals_the_difference_of_two_gradients():
    """Independent truth: back-propagate both logits and subtract."""
    tower = deep_tower()
    x = torch.randn(3, 4, dtype=torch.float64)
    fresh, cached = torch.randn(2, 2, 5, dtype=torch.float64)
    error = gradient_error(tower(x), tower.parameters(), fresh, cached)
    for i in range(3):
        for j in range(2):
            logits = tower(x[i : i + 1])[0] @ torch.stack([cached[j], fresh[j]]).T
            stale, true = (
                torch.cat(
                    [
                        g.flatten()
                        for g in torch.autograd.grad(
                            logit, list(tower.parameters()), retain_graph=True
                        )
                    ]
                )
                for logit in logits
            )
            expected = (stale - true).square().sum()
            torch.testing.assert_close(error.deviation[i, j], expected)


def test_lemma_holds_for_a_deep_tower_and_is_reached():
    tower = deep_tower()
    users = tower(torch.randn(3, 4, dtype=torch.float64))
    fresh = torch.randn(40, 5, dtype=torch.float64)
    cached = fresh + 0.3 * torch.randn(40, 5, dtype=torch.float64)
    error = gradient_error(users, tower.parameters(), fresh, cached)
    assert (error.deviation <= error.bound * (1 + 1e-9)).all()
    assert (error.deviation >= 0).all()
    # Along the top eigenvector the bound is tight.
    gram = jacobian_gram(users[0], tower.parameters())
    direction = torch.linalg.eigh(gram).eigenvectors[:, -1]
    tight = gradient_error(users[:1], tower.parameters(), fresh[:1], fresh[:1] + 0.2 * direction)
    torch.testing.assert_close(tight.deviation, tight.bound)


def test_fresh_vectors_have_no_error():
    tower = deep_tower()
    vectors = torch.randn(4, 5, dtype=torch.float64)
    error = gradient_error(
        tower(torch.randn(2, 4, dtype=torch.float64)), tower.parameters(), vectors, vectors
    )
    assert (error.deviation == 0).all()
    assert (error.constant == 0).all()


@pytest.mark.parametrize("sparse", [True, False])
def test_embedding_rows_of_a_history_count_with_repeats(sparse):
    """Mean of rows 1, 1, 2: J has blocks ⅔ I and ⅓ I, so J Jᵀ = (4/9 + 1/9) I."""
    table = nn.Embedding(10, 3, sparse=sparse).double()
    user = table(torch.tensor([1, 1, 2])).mean(dim=0)
    gram = jacobian_gram(user, table.parameters())
    torch.testing.assert_close(gram, 5 / 9 * torch.eye(3, dtype=torch.float64))


def test_parameters_without_influence_add_nothing():
    tower = deep_tower()
    user = tower(torch.ones(1, 4, dtype=torch.float64))[0]
    unused = nn.Parameter(torch.ones(3))
    with_unused = jacobian_gram(user, [*tower.parameters(), unused])
    torch.testing.assert_close(with_unused, jacobian_gram(user, tower.parameters()))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: feature_drift(torch.zeros(3, 2), torch.zeros(4, 2)), "now and before"),
        (lambda: feature_drift(torch.zeros(3), torch.zeros(3)), "now and before"),
        (
            lambda: gradient_error(torch.zeros(2, 3), [], torch.zeros(4, 5), torch.zeros(4, 5)),
            "users, fresh and cached",
        ),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
