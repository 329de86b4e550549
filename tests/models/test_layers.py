import torch
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.models.layers import hard_readout, soft_readout


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
def test_hard_picks_the_best_score_of_each_row(B, K, seed):
    generator = torch.Generator().manual_seed(seed)
    interests = torch.randn(B, K, 3, generator=generator)
    target = torch.randn(B, 3, generator=generator)
    chosen = hard_readout(interests, target)
    for row in range(B):
        scores = [float(interest @ target[row]) for interest in interests[row]]
        assert torch.equal(chosen[row], interests[row, scores.index(max(scores))])


def test_soft_by_hand():
    interests = torch.tensor([[[1.0, 0.0], [3.0, 1.0]]])
    target = torch.tensor([[1.0, 0.0]])  # scores 1 and 3
    weight = torch.tensor([1.0, 3.0]).softmax(0)[1]
    torch.testing.assert_close(soft_readout(interests, target)[0, 1], weight)
    weight = torch.tensor([1.0, 9.0]).softmax(0)[1]
    torch.testing.assert_close(soft_readout(interests, target, 2.0)[0, 1], weight)


def test_soft_counts_copies_of_the_first_interest_once():
    interests = torch.tensor([[[1.0, 0.0], [0.5, 1.0]]])
    target = torch.tensor([[1.0, 0.2]])
    padded = torch.cat([interests, interests[:, :1], interests[:, :1]], dim=1)
    torch.testing.assert_close(soft_readout(padded, target), soft_readout(interests, target))


def test_only_the_chosen_interest_learns():
    interests = torch.tensor([[[1.0, 0.0], [3.0, 1.0]]], requires_grad=True)
    hard_readout(interests, torch.tensor([[1.0, 0.0]])).sum().backward()
    assert interests.grad.tolist() == [[[0.0, 0.0], [1.0, 1.0]]]
