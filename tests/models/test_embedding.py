import copy

import pytest
import torch

from crossbatch.models import EmbeddingTable


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


def test_hook_sees_the_ids_before_the_rows_are_read():
    """What the hook writes to the rows is what the read returns."""
    table, seen = EmbeddingTable(10, 2), []

    def catch_up(ids):
        seen.append(ids.tolist())
        with torch.no_grad():
            table.weight[ids] = 7.0

    table.before_read = catch_up
    assert torch.equal(table(torch.tensor([4, 5])), torch.full((2, 2), 7.0))
    assert torch.equal(table.mean(torch.tensor([1, 2]), torch.tensor([0])), torch.full((1, 2), 7.0))
    assert seen == [[4, 5], [1, 2]]


def test_copies_and_states_leave_the_hook_behind():
    table = EmbeddingTable(10, 2)
    table.before_read = lambda ids: None
    assert copy.deepcopy(table).before_read is None
    assert table.before_read is not None
    assert list(table.state_dict()) == ["weight"]


@pytest.mark.parametrize(("rows", "dim"), [(0, 4), (4, 0)])
def test_rejects_an_empty_table(rows, dim):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        EmbeddingTable(rows, dim)
