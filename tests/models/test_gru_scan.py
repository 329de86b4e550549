import pytest
import torch

from crossbatch.models.gru_scan import gru_scan


def make(steps: list[int], h: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(sum(steps), 3 * h), (h, 2 * h), (h, h)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("steps", [[1], [4, 4, 4], [5, 3, 3, 1]])
def test_written_out_gradients_are_the_gradients(steps):
    inputs = make(steps)
    assert torch.autograd.gradcheck(lambda *tensors: gru_scan(*tensors, steps), inputs)


def test_one_step_by_hand():
    """From a zero state: h' = (1 - sigmoid(z)) tanh(c), whatever the kernels are."""
    projected, gates, candidate = make([2])
    expected = (1 - projected[:, 3:6].sigmoid()) * projected[:, 6:].tanh()
    torch.testing.assert_close(gru_scan(projected, gates, candidate, [2]), expected)


def test_sequences_that_end_keep_their_state():
    projected, gates, candidate = make([3, 1])
    after_one = gru_scan(projected[:3], gates, candidate, [3])
    after_two = gru_scan(projected, gates, candidate, [3, 1])
    assert torch.equal(after_one[1:], after_two[1:])
    assert not torch.equal(after_one[0], after_two[0])


def test_inputs_stay_as_they_are():
    inputs = make([3, 2])
    copies = [tensor.detach().clone() for tensor in inputs]
    gru_scan(*inputs, [3, 2]).square().sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))
