"""Messages leave as soon as what they carry is there, and are waited for where it is needed."""

import pytest
import torch
from torch import nn

from crossbatch.training.distributed import gradients, ranks
from crossbatch.training.distributed.gradients import GradientSums
from crossbatch.training.distributed.ranks import Gathering

CALLS = ("all_gather", "all_reduce", "all_to_all_single")


@pytest.fixture
def log(monkeypatch):
    """What happens, in order; this process is the only rank, so that messages are copies."""
    events = []

    class Work:
        def __init__(self, name):
            self.name = name

        def wait(self):
            events.append(f"{self.name} arrives")

    def sending(name):
        def send(received, sent=None, *, async_op):
            assert async_op
            events.append(f"{name} leaves")
            if name == "all_gather":
                received[0].copy_(sent)
            elif name == "all_to_all_single":
                received.copy_(sent)
            return Work(name)

        return send

    for name in CALLS:
        monkeypatch.setattr(torch.distributed, name, sending(name))
    return events


class Noted(torch.autograd.Function):
    """An identity that says when it is run."""

    @staticmethod
    def forward(ctx, x, name, log):
        ctx.name, ctx.log = name, log
        log.append(name)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.log.append(f"{ctx.name} backward")
        return gradient, None, None


def test_item_vectors_travel_while_users_are_encoded_and_their_gradients_likewise(log):
    items, users = nn.Linear(3, 2), nn.Linear(3, 2)
    x = torch.randn(5, 3)
    v = Noted.apply(items(x), "item tower", log)
    gathering = Gathering(v, 5, 1)
    u = Noted.apply(users(x), "user tower", log)
    (u @ gathering.wait().T).square().sum().backward()
    assert log == [
        "item tower",
        "all_gather leaves",
        "user tower",
        "all_gather arrives",
        "all_to_all_single leaves",
        "user tower backward",
        "all_to_all_single arrives",
        "item tower backward",
    ]
    expected = torch.autograd.grad((users(x) @ items(x).T).square().sum(), items.weight)[0]
    torch.testing.assert_close(items.weight.grad, expected)


def test_gradients_leave_in_buckets_while_the_backward_pass_runs(log, monkeypatch):
    monkeypatch.setattr(gradients, "BUCKET", 1)
    first, second, unused = nn.Linear(3, 4), nn.Linear(4, 2), nn.Parameter(torch.zeros(2))
    parameters = [*first.parameters(), *second.parameters()]
    x, extra = torch.randn(5, 3), torch.tensor(7.0)
    loss = second(Noted.apply(first(x), "first layer", log)).square().sum()
    expected = torch.autograd.grad(loss, parameters, retain_graph=True)
    log.clear()
    sums = GradientSums([unused, *parameters], [extra])
    loss.backward()
    # Bias and weight of the second layer before the first layer's turn.
    assert log == [
        *["all_reduce leaves"] * 2,
        "first layer backward",
        *["all_reduce leaves"] * 2,
    ]
    assert [float(number) for number in sums.finish()] == [7.0]
    assert log[5:] == ["all_reduce leaves", *["all_reduce arrives"] * 5]
    assert unused.grad is None
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    # Nothing is left behind that a later backward pass would start.
    second(first(x)).sum().backward()
    assert len(log) == 11


def test_a_bucket_waits_for_those_before_it(log, monkeypatch):
    """Or ranks whose backward passes differ would send unlike messages."""
    monkeypatch.setattr(gradients, "BUCKET", 1)
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    sums = GradientSums(parameters, [torch.zeros(())])
    (
        parameters[0] * parameters[1]
    ).sum().backward()  # the last one, which is sent first, is missing
    assert log == []
    sums.finish()
    assert log == [*["all_reduce leaves"] * 3, *["all_reduce arrives"] * 3]
    assert parameters[2].grad is None
    assert parameters[0].grad.tolist() == [1.0, 1.0]


def test_a_failed_message_is_a_lost_rank(monkeypatch):
    def fail(*_, async_op):
        raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(torch.distributed, "all_gather", fail)
    with pytest.raises(ranks.LostContactError, match="closed by peer"):
        Gathering(torch.zeros(2, 2), 2, 1)
