"""Gradients of ranks: reads add up to those of the reads themselves, messages leave early."""

import pytest
import torch
from torch import nn

from crossbatch.kernels.row_gradients import RowRead, RowSums, sum_gradients
from crossbatch.models import EmbeddingTable
from crossbatch.training.distributed import gradients, ranks
from crossbatch.training.distributed.gradients import GradientSums, ReadExchange
from crossbatch.training.distributed.ranks import Gathering, Ranks
from crossbatch.training.optimizers.row_adam import RowAdam

NUM_ROWS, DIM = 40, 5


def made_read(generator, count, bags=None, columns=slice(None), dtype=torch.float32):
    ids = torch.randint(0, NUM_ROWS, (count,), generator=generator)
    rows, sizes = count, None
    if bags is not None:
        sizes = torch.tensor(bags)
        rows = len(bags)
        assert sum(bags) == count
    width = DIM if columns == slice(None) else columns.stop + 2
    leaf = torch.zeros(rows, width, dtype=dtype, requires_grad=True)
    leaf.grad = torch.randn(rows, width, generator=generator).to(dtype)
    return RowRead(ids, leaf, sizes, columns)


def reads_of_a_rank(generator, dtype):
    ignored = made_read(generator, 4, dtype=dtype)
    ignored.leaf.grad = None
    return [
        made_read(generator, 30, dtype=dtype),
        made_read(generator, 9, bags=[4, 0, 5], dtype=dtype),
        made_read(generator, 6, columns=slice(3, 3 + DIM), dtype=dtype),
        made_read(generator, 2, bags=[2], columns=slice(1, 1 + DIM), dtype=dtype),
        ignored,
    ]


def summed(reads, padding_row):
    """`[NUM_ROWS, DIM]` in float64, read by read and id by id."""
    total = torch.zeros(NUM_ROWS, DIM, dtype=torch.float64)
    for read in reads:
        if read.gradient is None:
            continue
        sizes = torch.ones(len(read.ids)).long() if read.sizes is None else read.sizes
        place = 0
        for gradient, size in zip(read.gradient.double(), sizes.tolist(), strict=True):
            for row in read.ids[place : place + size].tolist():
                total[row] += gradient / size * (row != padding_row)
            place += size
    return total


@pytest.fixture
def mirror(monkeypatch):
    """Every other rank has read the same; the numbers of elements that travel."""
    lengths = []

    def all_gather(received, own, *, async_op):
        lengths.append(own.numel())
        for buffer in received:
            buffer.copy_(own)
        return type("Work", (), {"wait": lambda self: None})()

    monkeypatch.setattr(torch.distributed, "all_gather", all_gather)
    return lengths


@pytest.mark.parametrize("padding_row", [None, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tables_get_the_sum_of_all_reads(mirror, dtype, padding_row):
    generator = torch.Generator().manual_seed(3)
    tables = []
    for _ in range(2):
        table = EmbeddingTable(NUM_ROWS, DIM, padding_row=padding_row).to(dtype)
        tables.append(RowAdam(table, lambda step: step * 0 + 0.1))
        tables[-1].reads = reads_of_a_rank(generator, dtype)
    expected = [summed(table.reads, padding_row) for table in tables]
    exchange = ReadExchange(Ranks(0, 2), tables)
    exchange.announce()
    exchange.finish()
    assert len(mirror) == 2
    for table, total in zip(tables, expected, strict=True):
        found = summed(table.reads, padding_row)
        rough = 0.1 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(found, 2 * total, rtol=rough, atol=rough)
        assert all(read.leaf.dtype == dtype for read in table.reads)


def test_a_row_that_is_read_often_travels_once(mirror):
    table = RowAdam(EmbeddingTable(NUM_ROWS, DIM), lambda step: step * 0 + 0.1)
    leaf = torch.zeros(1000, DIM, requires_grad=True)
    leaf.grad = torch.ones(1000, DIM)
    table.reads = [RowRead(torch.arange(1000) % 7, leaf)]
    exchange = ReadExchange(Ranks(0, 2), [table])
    exchange.announce()
    exchange.finish()
    assert mirror == [1, 3 + 7 * (1 + DIM)]


def test_nothing_read_is_no_row(mirror):
    table = RowAdam(EmbeddingTable(NUM_ROWS, DIM), lambda step: step * 0 + 0.1)
    exchange = ReadExchange(Ranks(0, 2), [table])
    exchange.announce()
    exchange.finish()
    assert table.reads == []
    before = table.table.weight.detach().clone()
    table.step()
    assert torch.equal(table.table.weight, before)


def test_sums_of_rows_are_those_of_plain_torch():
    generator = torch.Generator().manual_seed(4)
    reads = [made_read(generator, 50), made_read(generator, 8, columns=slice(2, 2 + DIM))]
    expected_rows, expected = sum_gradients(reads, 0)
    rows, totals = RowSums(0).totals(reads, NUM_ROWS, DIM)
    order = rows.argsort()
    assert torch.equal(rows[order], expected_rows)
    torch.testing.assert_close(totals[order], expected)


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
