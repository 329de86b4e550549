"""Row-wise Adagrad against the formula, applied to the whole table by hand."""

import pytest
import torch

from crossbatch.models import EmbeddingTable
from crossbatch.training.optimizers import RowAdagrad

pytestmark = pytest.mark.usefixtures("with_and_without_numba")


@pytest.mark.parametrize("padding_row", [None, 0])
def test_rows_move_by_the_formula(padding_row):
    torch.manual_seed(0)
    table = EmbeddingTable(9, 4, padding_row=padding_row)
    weight, squares = table.weight.detach().double(), torch.zeros(9, dtype=torch.float64)
    optimizer = RowAdagrad(table, lambda step: 0.1 / step)
    for step in range(1, 6):
        ids = torch.randint(0, 9, (3, 5))
        pull = torch.randn(3, 4)
        (5 * table.mean(ids.flatten(), torch.tensor([0, 5, 10])) * pull).sum().backward()
        (table(ids[:, 0]) * pull).sum().backward()
        optimizer.step()
        gradient = torch.zeros(9, 4, dtype=torch.float64)
        for row in range(3):
            for item in [*ids[row].tolist(), int(ids[row, 0])]:
                gradient[item] += pull[row].double() * (item != padding_row)
        squares += gradient.square().mean(dim=1)
        weight -= 0.1 / step * gradient / (squares.sqrt() + 1e-8).unsqueeze(1)
        torch.testing.assert_close(table.weight.detach().double(), weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(optimizer.squares.double(), squares, rtol=1e-5, atol=1e-7)


def test_state_continues_where_it_was():
    torch.manual_seed(0)
    tables = [EmbeddingTable(5, 3) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    first, second = (RowAdagrad(table, lambda step: 0.1 + 0 * step) for table in tables)

    def learn(optimizer):
        optimizer.table(torch.tensor([1, 2, 2])).square().sum().backward()
        optimizer.step()

    learn(first)
    second.load_state({key: value.clone() for key, value in first.state().items()})
    tables[1].load_state_dict(tables[0].state_dict())
    learn(first)
    learn(second)
    assert torch.equal(tables[0].weight, tables[1].weight)
