import pytest
import torch

from crossbatch import kernels
from crossbatch.models.gru_scan import gru_scan, gru_states


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


@pytest.mark.skipif(not kernels.available(), reason="needs numba")
@pytest.mark.parametrize("steps", [[], [1], [4, 4, 4], [5, 3, 3, 1]])
@pytest.mark.parametrize(("d", "h"), [(3, 3), (8, 5)])
def test_compiled_states_and_gradients_are_those_of_float64(steps, d, h):
    torch.manual_seed(1)
    shapes = [(sum(steps), d), (d, 3 * h), (h, 2 * h), (h, h), (3 * h,)]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    order = torch.randperm(max(steps, default=0))
    probe = torch.randn(len(order), h)
    final = gru_states(inputs[0], torch.tensor(steps, dtype=torch.int64), order, *inputs[1:])
    (final * probe).sum().backward()
    truths = [tensor.detach().double().requires_grad_() for tensor in inputs]
    items, input_kernel, gate_kernel, candidate_kernel, bias = truths
    if steps:
        states = gru_scan(items @ input_kernel + bias, gate_kernel, candidate_kernel, steps)
        (states * probe[order]).sum().backward()
        torch.testing.assert_close(final[order].double(), states, rtol=1e-5, atol=1e-6)
    for tensor, truth in zip(inputs, truths, strict=True):
        expected = torch.zeros_like(truth) if truth.grad is None else truth.grad
        torch.testing.assert_close(tensor.grad.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not kernels.available(), reason="needs numba")
def test_the_way_back_of_compiled_states_can_be_gone_twice():
    inputs = [torch.randn(shape, requires_grad=True) for shape in [(3, 2), (2, 6), (2, 4), (2, 2)]]
    bias = torch.zeros(6)
    steps, order = torch.tensor([2, 1]), torch.arange(2)
    total = gru_states(inputs[0], steps, order, *inputs[1:], bias).sum()
    first, second = (torch.autograd.grad(total, inputs, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))
