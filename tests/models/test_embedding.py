import copy

import pytest
import torch

from crossbatch.kernels.row_gradients import gradient_of_each_id
from crossbatch.models import EmbeddingTable
from crossbatch.models.embedding import read_side_by_side


def test_reads_rows_of_any_shape():
    table = EmbeddingTable(10, 4)
    ids = torch.tensor([[1, 2, 1], [9, 0, 3]])
    assert torch.equal(table(ids), table.weight[ids])


def test_gradient_is_sparse_over_the_rows_read():
    table = EmbeddingTable(1000, 4, padding_row=0)
    table(torch.tensor([5, 0, 5, 7])).sum().backward()
    gradient = table.weight.grad.coalesce()
    assert gradient.indices().tolist() == [[5, 7]]
    assert gradient.values().tolist() == [[2.0] * 4, [1.0] * 4]


def test_padding_row_is_zero_and_stays_so():
    table = EmbeddingTable(5, 4, padding_row=0, sparse=False)
    optimizer = torch.optim.AdamW(table.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        table(torch.tensor([0, 1])).square().sum().backward()
        optimizer.step()
    assert torch.equal(table.weight[0], torch.zeros(4))
    assert (table.weight[1:] != 0).all()


def test_gradients_of_several_reads_add_up():
    table = EmbeddingTable(10, 2)
    (table(torch.tensor([3])).sum() + 2 * table(torch.tensor([3, 4])).sum()).backward()
    assert table.weight.grad.to_dense()[[3, 4]].tolist() == [[3.0, 3.0], [2.0, 2.0]]


def test_mean_of_bags():
    table = EmbeddingTable(10, 4)
    means = table.mean(torch.tensor([1, 2, 2, 7]), torch.tensor([0, 3, 3]))  # [1,2,2], [], [7]
    w = table.weight
    expected = torch.stack([(w[1] + 2 * w[2]) / 3, torch.zeros(4), w[7]])
    torch.testing.assert_close(means, expected)
    means.sum().backward()
    assert w.grad.is_sparse


class Recorder:
    """Sets rows to 7 when they are about to be read, and remembers the reads."""

    def __init__(self, table):
        self.table, self.seen, self.reads = table, [], []
        table.row_optimizer = self

    def before_read(self, ids):
        self.seen.append(ids.tolist())
        with torch.no_grad():
            self.table.weight[ids] = 7.0

    def after_read(self, read):
        self.reads.append(read)


READS = {
    "rows": (lambda table: table(torch.tensor([[4, 0], [4, 5]])), [4, 0, 4, 5]),
    "mean": (lambda table: table.mean(torch.tensor([1, 2, 1]), torch.tensor([0, 0, 2])), [1, 2, 1]),
}


@pytest.mark.parametrize(("read", "ids"), READS.values(), ids=READS)
def test_recorder_hears_of_a_read_before_it_happens(read, ids):
    table = EmbeddingTable(10, 2)
    recorder = Recorder(table)
    read(table)
    assert recorder.seen == [ids]
    assert recorder.reads[0].ids.tolist() == ids


@pytest.mark.parametrize("read", [read for read, _ in READS.values()], ids=READS)
def test_gradients_of_reads_add_up_to_the_gradient_of_the_weight(read):
    """What a recorder gets is what autograd would have put into `weight.grad`."""
    table = EmbeddingTable(10, 3, padding_row=0)
    values = read(table)
    weight = torch.randn_like(values)
    (values * weight).sum().backward()
    expected = table.weight.grad.to_dense()
    table.weight.grad = None
    recorder = Recorder(table)
    recorder.before_read = lambda ids: None
    torch.testing.assert_close(read(table), values)
    (read(table) * weight).sum().backward()
    found = torch.zeros(10, 3)
    for reading in recorder.reads:
        if reading.gradient is not None:
            found.index_add_(0, reading.ids, gradient_of_each_id(reading))
    found[0] = 0  # the optimiser leaves padding alone
    torch.testing.assert_close(found, expected)
    assert table.weight.grad is None


def test_tables_read_side_by_side_get_the_gradients_that_a_concatenation_gives():
    tables = [EmbeddingTable(10, 3, padding_row=0), EmbeddingTable(7, 5)]
    ids = [torch.tensor([4, 0, 4, 5]), torch.tensor([6, 6, 0, 1])]
    lookups = list(zip(tables, ids, strict=True))
    joined = read_side_by_side(lookups)
    assert torch.equal(joined, torch.cat([table(i) for table, i in lookups], dim=1))
    weight = torch.randn(4, 8)
    (joined * weight).sum().backward()
    expected = [table.weight.grad.to_dense() for table in tables]
    recorders = [Recorder(table) for table in tables]
    again = read_side_by_side(lookups)
    assert (again == 7).all()  # the recorders were told before the read
    (again * weight).sum().backward()
    for recorder, table_ids, truth in zip(recorders, ids, expected, strict=True):
        assert recorder.seen == [table_ids.tolist()]
        (read,) = recorder.reads
        found = torch.zeros_like(truth).index_add_(0, read.ids, read.gradient)
        if truth.shape[1] == 3:
            found[0] = 0  # the optimiser leaves padding alone
        torch.testing.assert_close(found, truth)


def test_reads_without_gradient_are_not_remembered():
    table = EmbeddingTable(10, 2)
    recorder = Recorder(table)
    with torch.no_grad():
        table(torch.tensor([1]))
    assert recorder.reads == []


def test_copies_and_states_leave_the_recorder_behind():
    table = EmbeddingTable(10, 2)
    Recorder(table)
    assert copy.deepcopy(table).row_optimizer is None
    assert table.row_optimizer is not None
    assert list(table.state_dict()) == ["weight"]


@pytest.mark.parametrize(("rows", "dim"), [(0, 4), (4, 0)])
def test_rejects_an_empty_table(rows, dim):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        EmbeddingTable(rows, dim)
