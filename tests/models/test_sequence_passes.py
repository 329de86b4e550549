"""The parts of MIND's and GRU4Rec's way back; `tests/training/test_reference.py` has the whole."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from crossbatch import kernels

if not kernels.available():
    pytest.skip("needs numba", allow_module_level=True)

from crossbatch.models.history_kernel import by_history, by_step
from crossbatch.models.sequence_passes import Gradients


@pytest.fixture
def histories():
    torch.manual_seed(0)
    lengths = torch.randint(0, 8, (50,))
    lengths[:3] = torch.tensor([0, 7, 1])
    items = torch.randint(1, 99, (50, 7))
    return items * (torch.arange(7) < lengths[:, None]), lengths


def test_entries_history_by_history(histories):
    history, lengths = histories
    entries, stops, places = by_history(history.numpy())
    assert entries.tolist() == history[history != 0].tolist()
    assert stops.tolist() == lengths.cumsum(0).tolist()
    assert places.tolist() == [t for length in lengths.tolist() for t in range(length)]


def test_entries_step_by_step_are_those_of_a_packed_sequence(histories):
    history, lengths = histories
    entries, steps, order = by_step(history.numpy())
    kept = torch.from_numpy(order)
    assert sorted(order) == lengths.nonzero().flatten().tolist()
    packed = pack_padded_sequence(history[kept], lengths[kept], batch_first=True)  # longest first
    assert entries.tolist() == packed.data.tolist()
    assert steps.tolist() == packed.batch_sizes.tolist()


def test_no_entries():
    nothing = torch.zeros(3, 4, dtype=torch.int64).numpy()
    assert [len(part) for part in by_step(nothing)] == [0, 0, 0]
    assert [part.tolist() for part in by_history(nothing)] == [[], [0, 0, 0], []]


def test_gaps_close_up():
    gaps = torch.tensor([[0, 5, 0, 6], [7, 0, 8, 9]]).numpy()
    assert [part.tolist() for part in by_history(gaps)] == [
        [5, 6, 7, 8, 9],
        [2, 5],
        [0, 1, 0, 1, 2],
    ]
    assert [part.tolist() for part in by_step(gaps)] == [[7, 5, 8, 6, 9], [2, 2, 1], [1, 0]]


def test_gradients_add_up_until_they_are_dropped():
    weight, constant = torch.nn.Parameter(torch.zeros(2)), torch.zeros(2)
    gradients = Gradients([weight, constant])

    def write(*arrays):
        for array in arrays:
            array[:] = 3

    gradients.write(write)
    gradients.write(write)
    assert weight.grad.tolist() == [6, 6]
    assert constant.grad is None
    weight.grad = None
    gradients.write(write)
    assert weight.grad.tolist() == [3, 3]
    weight.grad = torch.ones(2)  # of autograd
    gradients.write(write)
    assert weight.grad.tolist() == [4, 4]


def test_gradients_that_add_up_by_themselves():
    weight = torch.nn.Parameter(torch.zeros(2))
    gradients = Gradients([weight])

    def add(keep, array):
        array[:] = keep * array + 3

    gradients.add(add)
    gradients.add(add)
    assert weight.grad.tolist() == [6, 6]
    weight.grad = None
    gradients.add(add)
    assert weight.grad.tolist() == [3, 3]
