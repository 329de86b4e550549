"""Mistakes are refused in a sentence that names argument, value and remedy."""

import pytest
import torch

from crossbatch.negatives import Candidates, NonFiniteLossError, sampled_softmax_loss

U = torch.randn(3, 4)
BATCH = Candidates(torch.randn(3, 4), torch.arange(3), torch.zeros(3))
NOTHING = Candidates(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), torch.empty(0))
NARROW = Candidates(torch.ones(1, 1), torch.tensor([1]), torch.zeros(1))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.randn(3), BATCH, BATCH), {}, r"users must be .*\[B, d\].*\[3\]"),
        ((U.long(), BATCH, BATCH), {}, "users must be a floating-point.*int64"),
        ((U[:2], BATCH, BATCH), {}, "positives must hold one column per user, 2, got 3"),
        ((torch.randn(3, 5), BATCH, BATCH), {}, "positives have dimension 4, users 5"),
        ((U, BATCH, NARROW), {}, "negatives have dimension 1, users 4"),
        ((U, BATCH, BATCH), {"temperature": 0.0}, "temperature must be positive.*got 0.0"),
        ((U, BATCH, BATCH), {"temperature": float("nan")}, "temperature .*got nan"),
        ((U, BATCH, BATCH), {"temperature": float("inf")}, "temperature .*finite, got inf"),
        ((U, BATCH, BATCH), {"temperature": torch.ones(3)}, r"temperature must be one.*\[3\]"),
        ((U, BATCH, BATCH), {"reduction": "avg"}, "reduction must be 'mean'.*got 'avg'"),
        ((U, BATCH, BATCH), {"mask": "ids"}, "mask must be one of both, batch, none, got 'ids'"),
        ((U, BATCH, BATCH), {"chunk_size": 0}, "chunk_size must be at least 1 or None, got 0"),
        ((U, BATCH, BATCH), {"exclude": torch.zeros(3, 2).bool()}, r"exclude .*\[3, 3\].*\[3, 2\]"),
        ((U, BATCH, BATCH), {"exclude": torch.zeros(3, 3)}, "exclude must be a bool tensor"),
        ((U[:0], NOTHING, NOTHING), {}, "users are empty; skip the batch"),
    ],
)
def test_bad_input_is_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        sampled_softmax_loss(*arguments, **options)


@pytest.mark.parametrize("broken", ["nan", "inf"])
@pytest.mark.parametrize("where", ["users", "positives.embeddings", "negatives.embeddings"])
def test_values_that_are_not_finite_are_named(problem, where, broken):
    p = problem(dtype=torch.float32, requires_grad=False)
    tensors = {
        "users": p.users,
        "positives.embeddings": p.positives.embeddings,
        "negatives.embeddings": p.cached.embeddings,
    }
    tensors[where][1, 2] = float(broken)
    with pytest.raises(NonFiniteLossError, match=f"{where} hold [1-9].* not finite.*learning rate"):
        sampled_softmax_loss(p.users, p.positives, p.positives + p.cached)


def test_a_zero_probability_is_reported_as_log_q():
    log_q = torch.tensor([0.0, float("-inf"), 0.0])
    batch = Candidates(torch.randn(3, 4), torch.arange(3), log_q)
    with pytest.raises(NonFiniteLossError, match=r"positives.log_q hold 1"):
        sampled_softmax_loss(U, batch, batch)


def test_overflowing_logits_are_reported_as_the_scale():
    u = torch.full((3, 4), 1e30)
    batch = Candidates(torch.full((3, 4), 1e30), torch.arange(3), torch.zeros(3))
    with pytest.raises(NonFiniteLossError, match=r"logits overflow .*1e\+30.*temperature"):
        sampled_softmax_loss(u, batch, batch)
