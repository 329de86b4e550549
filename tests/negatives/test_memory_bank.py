import copy
import math
from collections import deque
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.negatives import Candidates, MemoryBank, sampled_softmax_loss


def batch(size, dim=3, first_id=1):
    ids = torch.arange(first_id, first_id + size)
    return Candidates(torch.randn(size, dim), ids, -torch.rand(size))


def contents(bank):
    rows = bank.read()
    return [
        (tuple(v), i, q)
        for v, i, q in zip(
            rows.embeddings.tolist(), rows.item_ids.tolist(), rows.log_q.tolist(), strict=True
        )
    ]


OPERATIONS = st.lists(
    st.one_of(
        st.integers(min_value=0, max_value=14),  # enqueue so many rows
        st.sampled_from(["skip", "save and load", "deepcopy", "to"]),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=150)
@given(capacity=st.integers(0, 9), operations=OPERATIONS)
def test_is_a_deque_over_any_schedule(capacity, operations):
    """Strict FIFO for any batch size, also above the capacity, with copies made in between."""
    bank, truth, ids, step = MemoryBank(capacity, dim=2), deque(maxlen=capacity), count(1), 0
    for operation in operations:
        if operation == "skip":
            bank.skip()
            step += 1
        elif operation == "save and load":
            state = bank.state_dict()
            bank = MemoryBank(capacity, dim=2)
            bank.load_state_dict(state)
        elif operation == "deepcopy":
            bank = copy.deepcopy(bank)
        elif operation == "to":
            bank = bank.to("cpu")
        else:
            step += 1
            item_ids = torch.tensor([next(ids) for _ in range(operation)], dtype=torch.int64)
            vectors = torch.stack([item_ids.float(), -item_ids.float()], dim=1)
            bank.enqueue(Candidates(vectors, item_ids, -item_ids / 8))
            truth.extend(((i, -i), i, -i / 8, step) for i in item_ids.tolist())
        assert contents(bank) == [row[:3] for row in truth]
        assert bank.ages().tolist() == [step - row[3] for row in truth]
        assert len(bank) == len(truth)


@settings(deadline=None, max_examples=60)
@given(
    capacity=st.integers(1, 7),
    before=st.lists(st.integers(0, 9), max_size=6),
    after=st.lists(st.integers(0, 9), max_size=12),
)
def test_a_view_never_changes(capacity, before, after):
    """Rows handed out stay what they were, whatever is enqueued or loaded afterwards."""
    bank, other = MemoryBank(capacity, dim=3), MemoryBank(capacity, dim=3)
    other.enqueue(batch(capacity))
    for size in before:
        bank.enqueue(batch(size))
    view = bank.read()
    was = [x.clone() for x in (view.embeddings, view.item_ids, view.log_q)]
    for size in after:
        bank.enqueue(batch(size, first_id=1000))
    bank.load_state_dict(other.state_dict())
    bank.enqueue(batch(capacity, first_id=2000))
    now = (view.embeddings, view.item_ids, view.log_q)
    assert all(torch.equal(a, b) for a, b in zip(was, now, strict=True))


@settings(deadline=None, max_examples=60)
@given(
    capacity=st.integers(1, 7),
    before=st.lists(st.integers(0, 9), max_size=6),
    after=st.lists(st.integers(0, 9), max_size=12),
)
def test_a_state_dict_is_a_snapshot_without_being_copied(capacity, before, after):
    bank = MemoryBank(capacity, dim=3)
    for size in before:
        bank.enqueue(batch(size))
    expected, step = contents(bank), int(bank.step)
    state = bank.state_dict()
    for size in after:
        bank.enqueue(batch(size, first_id=1000))
    bank.load_state_dict(MemoryBank(capacity, dim=3).state_dict())
    resumed = MemoryBank(capacity, dim=3)
    resumed.load_state_dict(state)
    assert contents(resumed) == expected
    assert int(resumed.step) == step


def test_state_dict_holds_all_state():
    bank = MemoryBank(4, dim=3)
    names = {"embeddings", "item_ids", "log_q", "birth", "cursor", "fill", "step"}
    assert set(bank.state_dict()) == names
    assert not list(bank.parameters())


def test_state_dict_survives_a_file(tmp_path):
    bank = MemoryBank(5, dim=3)
    for _ in range(4):
        bank.enqueue(batch(3))
    torch.save(bank.state_dict(), tmp_path / "bank.pt")
    resumed = MemoryBank(5, dim=3)
    resumed.load_state_dict(torch.load(tmp_path / "bank.pt", weights_only=True))
    for each in (bank, resumed):
        torch.manual_seed(1)
        each.enqueue(batch(4, first_id=50))
    assert contents(bank) == contents(resumed)


def test_rows_are_constants_and_copies():
    v = torch.ones(2, 3, requires_grad=True)
    bank = MemoryBank(4, dim=3)
    bank.enqueue(Candidates(v * 2, torch.tensor([1, 2]), torch.zeros(2)))
    with torch.no_grad():
        v.zero_()
    rows = bank.read()
    assert rows.cached
    assert not rows.embeddings.requires_grad
    assert rows.embeddings.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_enqueue_copies_the_callers_memory():
    vectors, ids, log_q = torch.ones(2, 3), torch.tensor([1, 2]), torch.zeros(2)
    bank = MemoryBank(4, dim=3)
    bank.enqueue(Candidates(vectors, ids, log_q))
    vectors.fill_(9), ids.fill_(9), log_q.fill_(-9)
    assert contents(bank) == [((1, 1, 1), 1, 0), ((1, 1, 1), 2, 0)]


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_backward_after_enqueue(problem, chunk_size):
    """The bank may move on between a forward pass and its backward pass."""
    p = problem(B=4, d=3, dtype=torch.float32)
    bank = MemoryBank(6, dim=3)
    bank.enqueue(p.cached)
    gradients = []
    for enqueues in (0, 5):
        loss = sampled_softmax_loss(
            p.users, p.positives, p.positives + bank.read(), chunk_size=chunk_size
        )
        for _ in range(enqueues):
            bank.enqueue(batch(4))
        gradients.append(torch.autograd.grad(loss, (p.users, p.positives.embeddings)))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_storage_dtypes(dtype):
    bank = MemoryBank(4, dim=3, dtype=dtype)
    rows = batch(3)
    bank.enqueue(rows)
    stored = bank.read()
    assert stored.embeddings.dtype == getattr(torch, dtype)
    assert torch.equal(stored.embeddings, rows.embeddings.to(getattr(torch, dtype)))
    assert torch.equal(stored.log_q, rows.log_q)
    resumed = MemoryBank(4, dim=3, dtype=dtype)
    resumed.load_state_dict(bank.state_dict())
    assert contents(resumed) == contents(bank)


@pytest.mark.parametrize("moved", [torch.float16, torch.bfloat16, torch.float64])
def test_changing_the_precision_keeps_log_q_ids_and_counters(moved):
    bank = MemoryBank(4, dim=2)
    log_q = torch.tensor([-14.1731, -14.1697])  # 7 and 5 of ten million: one number in 16 bits
    bank.enqueue(Candidates(torch.ones(2, 2), torch.tensor([2**40, 7]), log_q))
    bank = bank.to(moved)
    assert bank.read().embeddings.dtype == moved
    assert torch.equal(bank.read().log_q, log_q)
    assert bank.read().item_ids.tolist() == [2**40, 7]
    bank.enqueue(batch(4, dim=2))
    assert len(bank) == 4


def test_capacity_zero_is_always_empty():
    bank = MemoryBank(0, dim=3)
    bank.enqueue(batch(5))
    assert len(bank) == 0
    assert bank.read().embeddings.shape == (0, 3)
    assert int(bank.step) == 1


def test_default_device_does_not_move_the_counters():
    with torch.device("meta"):
        bank = MemoryBank(2, dim=3)
    assert bank.cursor.device.type == "cpu"


def unchanged(bank, change):
    before = copy.deepcopy(bank.state_dict())
    change()
    after = bank.state_dict()
    return all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("broken", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("where", ["embeddings", "log_q"])
def test_rows_that_are_not_finite_are_refused(broken, where):
    bank = MemoryBank(4, dim=3)
    bank.enqueue(batch(3))
    bad = batch(3)
    getattr(bad, where)[1] = float(broken)

    def enqueue():
        with pytest.raises(ValueError, match=r"items hold 1 rows that are not finite.*diverged"):
            bank.enqueue(bad)

    assert unchanged(bank, enqueue)


def test_large_rows_are_not_mistaken_for_infinite_ones():
    bank = MemoryBank(4, dim=3)
    bank.enqueue(Candidates(torch.full((2, 3), 3e38), torch.tensor([1, 2]), torch.zeros(2)))
    assert len(bank) == 2


def test_rows_that_overflow_the_storage_are_refused():
    bank = MemoryBank(4, dim=3, dtype="float16")
    too_large = Candidates(torch.full((2, 3), 1e6), torch.tensor([1, 2]), torch.zeros(2))

    def enqueue():
        with pytest.raises(ValueError, match=r"2 rows that are not finite as torch\.float16"):
            bank.enqueue(too_large)

    assert unchanged(bank, enqueue)


def test_rows_of_another_dimension_are_refused():
    bank = MemoryBank(4, dim=3)

    def enqueue():
        with pytest.raises(ValueError, match=r"items have dimension 2, the bank stores 3.*dim=2"):
            bank.enqueue(batch(3, dim=2))

    assert unchanged(bank, enqueue)


@pytest.mark.parametrize(("capacity", "dim"), [(5, 3), (4, 2)])
def test_the_state_of_another_bank_is_refused(capacity, dim):
    bank, other = MemoryBank(4, dim=3), MemoryBank(capacity, dim)
    bank.enqueue(batch(3))
    other.enqueue(batch(3, dim=dim))

    def load():
        message = f"bank of capacity {capacity} and dim {dim}, this one has 4 and 3.*build it alike"
        with pytest.raises(ValueError, match=message):
            bank.load_state_dict(other.state_dict())

    assert unchanged(bank, load)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": -1, "dim": 3}, r"capacity must be 0 \(no bank\) or more, got -1"),
        ({"capacity": 4, "dim": 0}, "dim must be at least 1, got 0"),
        ({"capacity": 4, "dim": 3, "dtype": "int8"}, "dtype must be one of float32.*got 'int8'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MemoryBank(**options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_rows_move_and_counters_stay():
    bank = MemoryBank(4, dim=3).cuda()
    rows = batch(3)
    cuda = [x.cuda() for x in (rows.embeddings, rows.item_ids, rows.log_q)]
    bank.enqueue(Candidates(*cuda))
    assert bank.read().embeddings.device.type == "cuda"
    assert bank.cursor.device.type == "cpu"
    assert contents(bank) == contents_of(rows)


def contents_of(rows):
    bank = MemoryBank(len(rows), dim=rows.dim)
    bank.enqueue(rows)
    return contents(bank)


NOT_CONTIGUOUS = {
    "product of a transpose": lambda: (torch.randn(4, 6) @ torch.randn(5, 6).T).T,
    "transposed": lambda: torch.randn(4, 5).t(),
    "every second column": lambda: torch.randn(5, 8)[:, ::2],
    "expanded row": lambda: torch.randn(1, 4).expand(5, 4),
    "expanded column": lambda: torch.randn(5, 1).expand(5, 4),
    "misaligned": lambda: torch.randn(21)[1:].view(5, 4),
}


@pytest.mark.parametrize("make", NOT_CONTIGUOUS.values(), ids=NOT_CONTIGUOUS.keys())
def test_rows_of_any_memory_layout_are_stored_as_they_read(make):
    torch.manual_seed(0)
    rows = make()
    ids, log_q = torch.arange(10)[::2], torch.zeros(1).expand(5)
    bank = MemoryBank(8, 4)
    bank.enqueue(Candidates(rows, ids, log_q))
    stored = bank.read()
    assert stored.embeddings.tolist() == rows.tolist()
    assert stored.item_ids.tolist() == [0, 2, 4, 6, 8]
    assert stored.log_q.tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("cursor", "fill"),
    [(-(10**8), 0), (-3000, 0), (1024, 1024), (17, 8), (3, 5), (9, 9), (4, -1), (2**62, 0)],
)
def test_counters_that_no_bank_can_have_are_refused(cursor, fill):
    bank = MemoryBank(8, 4)
    bank.enqueue(Candidates(torch.ones(3, 4), torch.arange(3), torch.zeros(3)))
    before = {name: value.clone() for name, value in bank.state_dict().items()}
    forged = dict(before, cursor=torch.tensor(cursor), fill=torch.tensor(fill))
    with pytest.raises(ValueError, match=r"capacity 8 cannot hold|must be one int64"):
        bank.load_state_dict(forged)
    for name, value in bank.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("step", [torch.tensor(-1), torch.tensor([1]), torch.tensor(1.0)])
def test_a_step_that_is_no_count_is_refused(step):
    bank = MemoryBank(8, 4)
    with pytest.raises(ValueError, match="step of the bank"):
        bank.load_state_dict(bank.state_dict() | {"step": step})


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_bank_that_refuses_rows_is_unchanged(broken):
    bank = MemoryBank(7, dim=5)
    rows = torch.zeros(2, 5)
    rows[1, 3] = broken
    with pytest.raises(ValueError, match="1 rows that are not finite"):
        bank.enqueue(Candidates(rows, torch.tensor([1, 2]), torch.zeros(2)))
    assert len(bank) == int(bank.step) == 0
