import numpy as np
import pytest
import torch

from crossbatch.models import YouTubeDNN
from crossbatch.models.history import History, PaddedHistory


def reference(tower: YouTubeDNN, history: np.ndarray, lengths: list[int]) -> np.ndarray:
    """Mean of each row's own items, then the layers, one row at a time."""
    users = []
    for row, length in zip(history, lengths, strict=True):
        x = sum(row[:length], np.zeros(row.shape[1])) / max(length, 1)
        layers = [layer for layer in tower.layers if isinstance(layer, torch.nn.Linear)]
        for place, layer in enumerate(layers):
            x = layer.weight.detach().numpy() @ x + layer.bias.detach().numpy()
            if place + 1 < len(layers) or isinstance(tower.layers[-1], torch.nn.ReLU):
                x = np.maximum(x, 0)
        users.append(x)
    return np.stack(users)


@pytest.mark.parametrize(("hidden", "relu"), [((), False), ((9, 7), False), ((9,), True)])
def test_equals_the_definition(hidden, relu):
    torch.manual_seed(0)
    tower = YouTubeDNN(8, hidden=hidden, relu=relu).double()
    for layer in tower.layers:
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.normal_(layer.bias)
    history, lengths = torch.randn(5, 6, 8, dtype=torch.float64), [6, 1, 0, 3, 5]
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    expected = reference(tower, history.numpy(), lengths)
    np.testing.assert_allclose(
        tower(PaddedHistory(history, mask))[:, 0].detach(), expected, rtol=0, atol=1e-8
    )


def test_default_is_one_linear_layer_with_zero_bias():
    tower = YouTubeDNN(64)
    (layer,) = tower.layers
    assert layer.weight.shape == (64, 64)
    assert torch.equal(layer.bias, torch.zeros(64))
    limit = (6 / 128) ** 0.5
    assert 0.95 * limit < layer.weight.abs().max() <= limit
    assert (
        tower(PaddedHistory(torch.randn(4, 3, 64), torch.ones(4, 3, dtype=torch.bool))) < 0
    ).any()  # no ReLU


def test_hand_value():
    tower = YouTubeDNN(2)
    with torch.no_grad():
        tower.layers[0].weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -1.0]]))
        tower.layers[0].bias.copy_(torch.tensor([0.5, 0.0]))
    history = torch.tensor([[[1.0, 0.0], [3.0, 2.0], [9.0, 9.0]]])
    mask = torch.tensor([[True, True, False]])
    # mean (2, 1); first: 2 + 2·1 + 0.5, second: -1
    torch.testing.assert_close(tower(PaddedHistory(history, mask)), torch.tensor([[[4.5, -1.0]]]))


def test_rejects_an_impossible_width():
    with pytest.raises(ValueError, match="hidden must hold layer widths of at least 1, got"):
        YouTubeDNN(8, hidden=(0,))


def test_recency_pooling_weighs_items_by_age():
    tower = YouTubeDNN(2, pooling="recency")
    with torch.no_grad():
        tower.log_weights.copy_(torch.zeros_like(tower.log_weights))
        tower.log_weights[1] = np.log(3.0)  # the item before the newest counts three times
    history = torch.tensor([[[1.0, 0.0], [4.0, 8.0], [0.0, 0.0]]])
    mask = torch.tensor([[True, True, False]])
    # weights 3/4 and 1/4; the layer begins as the identity
    expected = torch.tensor([[[1.75, 2.0]]])
    torch.testing.assert_close(tower(PaddedHistory(history, mask)), expected)
    items = History(lambda: history[0, :2], torch.tensor([2]))
    torch.testing.assert_close(tower(items), expected)


def test_recency_weights_begin_falling_so_that_old_items_hardly_count():
    tower = YouTubeDNN(4, pooling="recency")
    newest = torch.randn(1, 20, 4)
    longer = torch.cat([torch.randn(1, 180, 4), newest], dim=1)

    def user(vectors):
        return tower(PaddedHistory(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool)))

    # e^(-0.15 · 20) of the weight is older than 20 items
    torch.testing.assert_close(user(longer), user(newest), atol=0.25, rtol=0)
    assert not torch.allclose(user(longer), user(newest), atol=1e-4)


def test_rejects_an_unknown_pooling():
    with pytest.raises(ValueError, match="pooling must be one of mean, recency, got 'max'"):
        YouTubeDNN(8, pooling="max")
