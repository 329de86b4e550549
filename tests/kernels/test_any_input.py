"""Operations read any tensor as it stands, or refuse it: never other memory, never past an end.

Each example takes an operation, lays its tensors out in some way in memory, and may give one of
them another type, device or shape. What the definition makes of the same numbers in float64 is the
truth; where it has none, the operation must refuse as well.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch import kernels
from crossbatch.kernels import OPS
from crossbatch.kernels.row_gradients import RowRead
from crossbatch.kernels.row_updates import AdamRates, RowUpdates
from crossbatch.kernels.skipped_steps import SkippedSteps

from .test_contract import CASES, NO_GRADIENT, check, each_tensor, operation_of, tensors

REFUSALS = (ValueError, IndexError, RuntimeError, TypeError)
FAULTS = int(os.environ.get("CROSSBATCH_FAULTS", "0"))
ANY = settings(max_examples=max(300, 10 * FAULTS), derandomize=True)

pytestmark = [
    pytest.mark.skipif(not kernels.available(), reason="needs numba"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def misaligned(x):
    """The same numbers at an address that is no multiple of their size."""
    if x.numel() == 0:
        return x
    memory = bytearray(1 + x.numel() * x.element_size())
    place = torch.frombuffer(memory, dtype=x.dtype, offset=1).view(x.shape)
    return place.copy_(x)


def with_odd_strides(x):
    """Dimensions of one entry have strides that nothing follows from."""
    strides = [1 if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    return x.contiguous().as_strided(x.shape, strides) if x.numel() else x


def negative_view(x):
    return torch._neg_view(-x) if x.is_floating_point() else x


def expanded(x):
    """Strides of zero; the numbers are then those of the first row."""
    return x[:1].expand_as(x) if x.numel() and x.is_floating_point() else x


def every_second(x):
    return torch.stack([x, torch.zeros_like(x)], dim=-1).flatten(-2)[..., ::2] if x.dim() else x


LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.t().contiguous().t() if x.dim() == 2 else x,
    "every second": every_second,
    "expanded": expanded,
    "misaligned": misaligned,
    "odd strides": with_odd_strides,
    "negative view": negative_view,
}
TYPES = [torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.uint8]
SPOILED = {
    **{f"as {dtype}": lambda x, dtype=dtype: x.to(dtype) for dtype in TYPES},
    "on meta": lambda x: x.to("meta"),
    "empty": lambda x: x[:0] if x.dim() else x,
    "a row less": lambda x: x[1:] if x.dim() and len(x) else x,
    "a row more": lambda x: torch.cat([x, x[:1]]) if x.dim() and len(x) else x,
    "a column less": lambda x: x[..., 1:] if x.dim() > 1 else x,
    "a column more": lambda x: torch.cat([x, x[..., :1]], dim=-1) if x.dim() > 1 else x,
    "one dimension more": lambda x: x.unsqueeze(-1),
    "one dimension less": lambda x: x.flatten() if x.dim() > 1 else x,
    "one number": lambda x: x.flatten()[0] if x.numel() else x,
}
SIZES = st.lists(st.integers(0, 4), max_size=4)


def laid_out(arguments, data, strategy):
    """The arguments, each of their tensors in a layout of its own."""
    return each_tensor(arguments, lambda x: LAYOUTS[data.draw(strategy)](x))


@ANY
@given(case=st.sampled_from(sorted(CASES)), sizes=SIZES, seed=st.integers(0, 99), data=st.data())
def test_equals_its_definition_however_tensors_lie_in_memory(case, sizes, seed, data):
    torch.manual_seed(seed)
    check(case, laid_out(CASES[case](sizes), data, st.sampled_from(sorted(LAYOUTS))))


@ANY
@given(
    case=st.sampled_from(sorted(CASES)),
    sizes=SIZES,
    spoil=st.sampled_from(sorted(SPOILED)),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_a_spoiled_tensor_is_refused_or_read_as_the_definition_reads_it(
    case, sizes, spoil, seed, data
):
    torch.manual_seed(seed)
    arguments = CASES[case](sizes)
    victim = data.draw(st.integers(0, len(tensors(arguments)) - 1))
    count = iter(range(99))
    arguments = each_tensor(arguments, lambda x: SPOILED[spoil](x) if next(count) == victim else x)
    operation = OPS[operation_of(case)]
    if spoil == "on meta":  # torch itself may crash where devices are mixed
        refused_or_meta(operation, arguments)
        return
    try:
        truth = operation.definition(*doubled(arguments))
    except REFUSALS:
        with pytest.raises(REFUSALS):
            operation.run(*arguments)
        return
    try:
        found = operation.run(*arguments)
        if operation_of(case) not in NO_GRADIENT and isinstance(found, torch.Tensor):
            backward(operation, arguments)
    except REFUSALS:
        return
    for ours, theirs in zip(as_list(found), as_list(truth), strict=True):
        assert ours.shape == theirs.shape
        rough = {"rtol": 0.1, "atol": 0.1, "equal_nan": True}
        torch.testing.assert_close(ours.double(), theirs.double(), **rough)


def refused_or_meta(operation, arguments):
    """Tensors without numbers give no numbers."""
    try:
        found = operation.run(*arguments)
    except REFUSALS:
        return
    assert all(part.is_meta for part in as_list(found))


def doubled(arguments):
    return each_tensor(arguments, lambda x: x.double() if x.is_floating_point() else x.clone())


def as_list(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def backward(operation, arguments):
    """A backward pass: it must not crash either."""
    leaves = each_tensor(
        arguments,
        lambda x: x.detach().clone().requires_grad_() if x.is_floating_point() else x,
    )
    result = operation.run(*leaves)
    if result.requires_grad:
        result.sum().backward()


# ---- rows of tables, updated in place --------------------------------------------------------

RATES = AdamRates(0.1, 0.1, 0.999, 0.001, 1.0, 1e-8, 1.0)


def tables(R=9, d=5):
    torch.manual_seed(0)
    weight, first, second = torch.randn(R, d), torch.randn(R, d), torch.rand(R, d)
    return weight, first, second, torch.randint(0, 3, (R,), dtype=torch.int32)


def read(ids, gradient, sizes=None, column=0):
    leaf = torch.zeros_like(gradient, requires_grad=True)
    leaf.grad = gradient
    return RowRead(ids, leaf, sizes, slice(column, None if column == 0 else column + 5))


def adam(reads, parts, step=4):
    RowUpdates().adam(reads, *parts, step, RATES)


def adagrad(reads, parts):
    RowUpdates().adagrad(reads, parts[0], parts[1][:, 0].contiguous(), 0.1, 1e-8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_rows_may_lie_anywhere(layout):
    """Against plain indexing in float64: β2 = 1 − renewal, all other numbers as in `RATES`."""
    weight, first, second, touched = tables()
    ids = torch.tensor([3, 3, 8, 0])
    gradient = LAYOUTS[layout](torch.randn(4, 5))
    total = torch.zeros(9, 5, dtype=torch.float64).index_add_(0, ids, gradient.double())
    mean = first.double() + 0.1 * (total - first.double())
    square = 0.999 * second.double() + 0.001 * total**2
    moved = weight.double() - 0.1 * mean / (square.sqrt() + 1e-8)
    rows = ids.unique()
    truth = weight.double().index_copy(0, rows, moved[rows])
    adam([read(LAYOUTS[layout](ids), gradient)], (weight, first, second, touched))
    torch.testing.assert_close(weight.double(), truth, rtol=1e-5, atol=1e-6)
    assert touched[rows].tolist() == [4] * len(rows)


@pytest.mark.parametrize("update", [adam, adagrad])
@pytest.mark.parametrize(
    ("ids", "shape", "sizes", "column"),
    [
        ([0, 9], (2, 5), None, 0),
        ([0, -1], (2, 5), None, 0),
        ([0, 1], (2, 4), None, 0),
        ([0, 1], (2, 7), None, 3),
        ([0, 1, 2], (2, 5), None, 0),
        ([0, 1], (3, 5), None, 0),
        ([0, 1, 2], (2, 5), [3], 0),
        ([0, 1, 2], (2, 5), [1, 1], 0),
        ([0, 1, 2], (2, 5), [-1, 4], 0),
        ([0, 1, 2], (3, 5), [1, 1, 1, 5, 5], 0),
    ],
)
def test_reads_that_do_not_fit_the_table_are_refused(update, ids, shape, sizes, column):
    sizes = None if sizes is None else torch.tensor(sizes)
    with pytest.raises((ValueError, IndexError)):
        update([read(torch.tensor(ids), torch.randn(shape), sizes, column)], tables())


SHORT = {
    "first": (1, lambda x: x[:4].contiguous()),
    "second": (2, lambda x: x[:, :2].contiguous()),
    "touched": (3, lambda x: x[:4].contiguous()),
    "touched of another type": (3, lambda x: x.long()),
}


@pytest.mark.parametrize("part", SHORT)
def test_tables_that_do_not_fit_each_other_are_refused(part):
    parts = list(tables())
    index, change = SHORT[part]
    parts[index] = change(parts[index])
    with pytest.raises(ValueError, match="must"):
        adam([read(torch.tensor([8]), torch.randn(1, 5))], parts)
    skipped = SkippedSteps(lambda t: torch.full_like(t, 0.1), (0.9, 0.999), 1e-8)
    with pytest.raises(ValueError, match="must"):
        skipped.catch_up(torch.tensor([8]), *parts, 4)


@pytest.mark.parametrize("last", [-(2**31), -1, 5, 2**31 - 1])
def test_last_steps_that_cannot_be_move_nothing(last):
    weight, first, second, touched = tables()
    touched[8], before = last, weight.clone()
    skipped = SkippedSteps(lambda t: torch.full_like(t, 0.1), (0.9, 0.999), 1e-8)
    skipped.catch_up(torch.tensor([8]), weight, first, second, touched, 4)
    assert torch.equal(weight, before)


def test_one_updater_serves_tables_of_several_widths():
    updates = RowUpdates()
    for d in (5, 9, 3):
        parts = tables(d=d)
        before = parts[0].clone()
        row = read(torch.tensor([2, 2]), torch.ones(2, d))
        updates.adagrad([row], parts[0], torch.zeros(9), 0.5, 0.0)
        torch.testing.assert_close(before[2] - parts[0][2], torch.full((d,), 0.5))
