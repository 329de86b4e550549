"""A tower's layers as one node of the graph, against the plain layers and finite differences."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from crossbatch.models.dense import mlp
from crossbatch.models.fused_layers import FusedLayers

every_stack = pytest.mark.parametrize("hidden", [(), (7,), (7, 5)], ids=str)
every_end = pytest.mark.parametrize("relu", [False, True], ids=["linear", "relu"])


@every_stack
@every_end
@pytest.mark.parametrize("shape", [(6,), (4, 3)], ids=["rows", "interests"])
def test_equals_the_plain_layers(hidden, relu, shape):
    torch.manual_seed(0)
    layers = mlp(4, hidden, 3, relu=relu).double()
    for bias in (p for p in layers.parameters() if p.dim() == 1):
        nn.init.normal_(bias)
    x = torch.randn(*shape, 4, dtype=torch.float64, requires_grad=True)
    found, expected = layers(x), nn.Sequential(*layers)(x)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(expected)
    leaves = [x, *layers.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad((found * weight).sum(), leaves),
        torch.autograd.grad((expected * weight).sum(), leaves),
    )


@every_stack
@every_end
def test_gradients_are_those_of_finite_differences(hidden, relu):
    torch.manual_seed(1)
    layers = mlp(4, hidden, 3, relu=relu).double()
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    parameters = list(layers.parameters())
    assert gradcheck(
        lambda x, *parameters: FusedLayers.run(x, list(parameters), last_relu=relu),
        (x, *parameters),
    )


def test_it_is_one_node_in_training_and_plain_elsewhere():
    layers = mlp(4, (7,), 3)
    x = torch.randn(5, 4)
    assert "FusedLayers" in type(layers(x).grad_fn).__name__
    with torch.no_grad():
        torch.testing.assert_close(layers(x), nn.Sequential(*layers)(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert layers(x).dtype == torch.bfloat16


def test_an_input_without_gradient_gets_none():
    layers = mlp(4, (7,), 3)
    layers(torch.randn(5, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in layers.parameters())


def test_a_second_derivative_is_refused_rather_than_wrong():
    x = torch.randn(5, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(mlp(4, (7,), 3)(x).sum(), x, create_graph=True)
