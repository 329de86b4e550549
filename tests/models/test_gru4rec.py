import numpy as np
import pytest
import torch

from crossbatch.models import GRU4Rec
from crossbatch.models.history import PaddedHistory

LENGTHS = [6, 1, 0, 3, 5, 6]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def tf1_gru(kernels: dict[str, np.ndarray], items: np.ndarray, h: int) -> np.ndarray:
    """TF1's GRUCell from its definition: one matrix for input and state, reset before it."""
    state = np.zeros(h)
    for x in items:
        gates = sigmoid(np.concatenate([x, state]) @ kernels["gates"] + kernels["gate_bias"])
        r, u = gates[:h], gates[h:]
        c = np.tanh(np.concatenate([x, r * state]) @ kernels["candidate"] + kernels["bias"])
        state = u * state + (1 - u) * c
    return state


def double_tower(h: int | None, *, reset_before: bool = True) -> GRU4Rec:
    torch.manual_seed(0)
    tower = GRU4Rec(8, hidden_size=h, reset_before=reset_before).double()
    for parameter in tower.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return tower


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(6, 6, 8).double(), torch.arange(6) < torch.tensor(LENGTHS)[:, None]


@pytest.mark.parametrize("h", [8, 5])
def test_equals_tf1s_gru_cell(h, batch):
    tower = double_tower(h)
    cell = {name: value.detach().numpy() for name, value in tower.gru.named_parameters()}
    kernels = {
        "gates": np.concatenate([cell["input_kernel"][:, : 2 * h], cell["gate_kernel"]]),
        "candidate": np.concatenate([cell["input_kernel"][:, 2 * h :], cell["candidate_kernel"]]),
        "gate_bias": cell["bias"][: 2 * h],
        "bias": cell["bias"][2 * h :],
    }
    history, mask = batch
    rows = zip(history.numpy(), LENGTHS, strict=True)
    states = np.stack([tf1_gru(kernels, row[:length], h) for row, length in rows])
    if h != 8:
        layer = tower.projection
        states = states @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    np.testing.assert_allclose(
        tower(PaddedHistory(history, mask))[:, 0].detach(), states, rtol=0, atol=1e-12
    )


def test_reset_after_equals_torchs_gru_on_each_row_alone(batch):
    tower = double_tower(None, reset_before=False)
    history, mask = batch
    users = tower(PaddedHistory(history, mask))[:, 0]
    for user, row, length in zip(users, history, LENGTHS, strict=True):
        alone = tower.gru.gru(row[None, :length])[1][0, 0] if length else torch.zeros(8).double()
        torch.testing.assert_close(user, alone)


def test_the_two_forms_differ():
    """Same kernels, reset gate before or after: TF1 and cuDNN do not compute the same state."""
    before, after = double_tower(None), double_tower(None, reset_before=False)
    with torch.no_grad():
        after.gru.gru.weight_ih_l0.copy_(before.gru.input_kernel.T)
        hidden = torch.cat([before.gru.gate_kernel, before.gru.candidate_kernel], dim=1)
        after.gru.gru.weight_hh_l0.copy_(hidden.T)
        after.gru.gru.bias_ih_l0.copy_(before.gru.bias)
        after.gru.gru.bias_hh_l0.zero_()
    history, mask = torch.randn(2, 2, 8).double(), torch.ones(2, 2, dtype=torch.bool)
    one = PaddedHistory(history[:, :1], mask[:, :1])
    torch.testing.assert_close(before(one), after(one))
    both = PaddedHistory(history, mask)
    assert (before(both) - after(both)).abs().max() > 1e-3


@pytest.mark.parametrize("reset_before", [True, False])
def test_padded_equals_ragged(reset_before, batch):
    tower = double_tower(None, reset_before=reset_before)
    history, mask = batch
    unrolled = tower.gru.padded(history, mask).masked_fill(~mask[:, :1], 0.0)
    torch.testing.assert_close(unrolled, tower(PaddedHistory(history, mask))[:, 0])


@pytest.mark.parametrize("reset_before", [True, False])
def test_initialisation(reset_before):
    gru = GRU4Rec(64, reset_before=reset_before).gru
    if reset_before:
        kernels = torch.cat(
            [gru.input_kernel, torch.cat([gru.gate_kernel, gru.candidate_kernel], 1)]
        )
        biases = gru.bias
    else:
        kernels = torch.cat([gru.gru.weight_ih_l0, gru.gru.weight_hh_l0], dim=1).T
        biases = gru.gru.bias_ih_l0 + gru.gru.bias_hh_l0
    assert kernels.shape == (128, 192)
    gates, candidate = kernels[:, :128].abs().max().item(), kernels[:, 128:].abs().max().item()
    assert gates == pytest.approx((6 / (128 + 128)) ** 0.5, rel=1e-2)
    assert candidate == pytest.approx((6 / (128 + 64)) ** 0.5, rel=1e-2)
    assert torch.equal(biases, torch.cat([torch.ones(128), torch.zeros(64)]))


def test_rejects_an_impossible_width():
    with pytest.raises(ValueError, match="hidden_size must be at least 1, got 0"):
        GRU4Rec(8, hidden_size=0)
