import numpy as np
import pytest
import torch

from crossbatch.models import ComiRecSA
from crossbatch.models.history import PaddedHistory

LENGTHS = [6, 1, 0, 3]


@pytest.mark.parametrize("positions", [True, False])
def test_equals_the_definition(positions):
    torch.manual_seed(0)
    tower = ComiRecSA(8, interests=3, positions=positions, max_length=4).double()
    for parameter in tower.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    first, _, second = tower.attention
    history = torch.randn(4, 6, 8).double()
    mask = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    interests = tower(PaddedHistory(history, mask)).detach().numpy()
    for row, length, users in zip(history.numpy(), LENGTHS, interests, strict=True):
        expected = np.zeros((3, 8))
        energies = []
        for t in range(length):
            x = row[t] + (tower.positions.weight[min(t, 3)].detach().numpy() if positions else 0)
            hidden = np.tanh(first.weight.detach().numpy() @ x + first.bias.detach().numpy())
            energies.append(second.weight.detach().numpy() @ hidden + second.bias.detach().numpy())
        for k in range(3 if length else 0):
            share = np.exp([energy[k] for energy in energies])
            expected[k] = sum(s * x for s, x in zip(share / share.sum(), row[:length], strict=True))
        np.testing.assert_allclose(users, expected, atol=1e-10)


def test_attention_layer_is_four_times_as_wide():
    assert ComiRecSA(16).attention[0].weight.shape == (64, 16)
    assert ComiRecSA(16, hidden_size=5).attention[0].weight.shape == (5, 16)


def test_one_item_is_every_interest():
    history = torch.randn(1, 1, 8)
    interests = ComiRecSA(8)(PaddedHistory(history, torch.ones(1, 1, dtype=torch.bool)))
    torch.testing.assert_close(interests, history.expand(1, 4, 8))
