"""Sums of row gradients by numba against their definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.models import EmbeddingTable
from crossbatch.models.embedding import Read
from crossbatch.training.row_sums import CompiledSums, add_up

pytest.importorskip("numba")
DIM = 3


def read(draw, num_rows):
    """Rows one by one, as sums of L, or as sums of any; beside columns of another table."""
    ids = torch.tensor(draw(st.lists(st.integers(0, num_rows - 1), min_size=6, max_size=60)))
    ids = ids[: len(ids) // 6 * 6]
    bags = draw(st.sampled_from([1, 3, "any"]))
    before = draw(st.integers(0, 2))
    size = len(ids) // bags if isinstance(bags, int) else 4
    gradient = torch.randn(size, before + DIM + 1)
    groups = bags if isinstance(bags, int) else torch.randint(0, 4, (len(ids),))
    return Read(ids, groups, gradient, slice(before, before + DIM), given=True), gradient


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_compiled_sums_are_those_of_the_definition(data):
    num_rows = data.draw(st.sampled_from([1, 5, 1000, 200_000]))
    padding = data.draw(st.sampled_from([None, 0]))
    table = EmbeddingTable(num_rows, DIM, padding_row=padding)
    sums = CompiledSums(table)
    for _ in range(2):  # memory is used again
        found = [read(data.draw, num_rows) for _ in range(data.draw(st.integers(1, 3)))]
        rows, expected = add_up(found, padding)
        count = sums(found)
        assert sorted(sums.rows[:count].tolist()) == rows.tolist()
        weight, squares = torch.zeros(num_rows, DIM), torch.ones(num_rows)
        # Without a past, a step of rate 1 over √(1 + mean square) is the sum, scaled.
        sums.kernels.adagrad(count, sums.rows, sums.sources, weight.numpy(), squares.numpy(), 1, 0)
        scale = (1 + expected.square().mean(dim=1)).sqrt().unsqueeze(1)
        torch.testing.assert_close(-weight[rows] * scale, expected, rtol=1e-4, atol=1e-5)


def test_more_ids_than_ever_find_room():
    sums = CompiledSums(EmbeddingTable(50_000, DIM))
    ids = torch.randperm(50_000)[:5_000].repeat(2)
    gradient = torch.randn(10_000, DIM)
    assert sums([(Read(ids, 1, gradient, given=True), gradient)]) == 5_000
