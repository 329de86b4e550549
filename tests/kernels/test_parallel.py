"""How work is cut into parts; that operations in parts are right is in `test_contract`."""

import pytest
import torch

from crossbatch import kernels
from crossbatch.kernels import parallel
from crossbatch.kernels.parallel import Part, equal_histories, equal_parts, run_parts
from crossbatch.kernels.row_gradients import RowRead, RowSums, sum_gradients
from crossbatch.training.threads import using

pytestmark = pytest.mark.skipif(
    parallel._start_threads() is None, reason="needs torch's OpenMP library"
)


@pytest.fixture
def three_threads(monkeypatch):
    """Three threads, and no part too small to be worth one."""
    monkeypatch.setattr(parallel, "LEAST_NUMBERS", 1)
    with using(3):
        yield


def test_histories_are_cut_by_their_items(three_threads):
    stops = torch.tensor([4, 4, 5, 10, 12])
    assert equal_histories(stops, 12, 1) == [
        Part(0, 0, 1, 0, 4), Part(1, 1, 4, 4, 10), Part(2, 4, 5, 10, 12),
    ]  # fmt: skip
    assert equal_parts(7, 1) == [
        Part(0, 0, 2, 0, 2), Part(1, 2, 4, 2, 4), Part(2, 4, 7, 4, 7),
    ]  # fmt: skip


def test_one_thread_and_little_work_are_one_part(three_threads, monkeypatch):
    with using(1):
        assert equal_parts(10**6, 100) == [Part(0, 0, 10**6, 0, 10**6)]
    monkeypatch.setattr(parallel, "LEAST_NUMBERS", 100)
    assert equal_parts(19, 10) == [Part(0, 0, 19, 0, 19)]
    assert equal_histories(torch.empty(0, dtype=torch.int64), 0, 10) == [Part(0, 0, 0, 0, 0)]


def test_an_error_in_a_part_is_raised(three_threads):
    def run(part):
        if part.number == 2:
            raise IndexError("of the third part")

    with pytest.raises(IndexError, match="of the third part"):
        run_parts(run, equal_parts(9, 1))


needs_numba = pytest.mark.skipif(not kernels.available(), reason="needs numba")


@needs_numba
@pytest.mark.parametrize("count", [0, 1, 7, 3_000])
def test_gradients_of_rows_add_up_alike_on_any_number_of_threads(three_threads, count):
    generator = torch.Generator().manual_seed(count)

    def leaf(rows):
        found = torch.zeros(rows, 5, requires_grad=True)
        found.grad = torch.randn(rows, 5, generator=generator)
        return found

    def reads():
        generator.manual_seed(count)
        ids, bags = torch.randint(400, (2, count), generator=generator)
        sizes = torch.tensor([0, count // 3, count - count // 3])
        return [
            RowRead(ids, leaf(count), None, slice(1, 5)),
            RowRead(bags, leaf(3), sizes, slice(1, 5)),
        ]

    expected_rows, expected = sum_gradients(reads(), 3)
    found = {}
    for threads in (1, 2, 3):
        with using(threads):
            rows, totals = RowSums(3).totals(reads(), 400, 4)
        order = rows.argsort()
        assert torch.equal(rows[order], expected_rows)
        torch.testing.assert_close(totals[order], expected)
        found[threads] = totals[order]
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[1], found[3])


@needs_numba
def test_sizes_that_are_not_the_number_of_ids_are_refused():
    leaf = torch.zeros(2, 4, requires_grad=True)
    leaf.grad = torch.zeros(2, 4)
    for sizes in ([1, 1], [2, 2], [4, -1]):
        read = RowRead(torch.tensor([1, 2, 3]), leaf, torch.tensor(sizes))
        with pytest.raises(IndexError, match="sizes"):
            RowSums(0).totals([read], 9, 4)
