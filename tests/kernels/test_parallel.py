"""How work is cut into parts; that operations in parts are right is in `test_contract`."""

import pytest
import torch

from crossbatch.kernels import parallel
from crossbatch.kernels.parallel import Part, equal_histories, equal_parts, run_parts
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
