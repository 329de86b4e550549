"""RowAdam against torch.optim.Adam and torch.optim.SparseAdam."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossbatch.models import EmbeddingTable
from crossbatch.training.optimizers import SCHEDULES, RowAdam

pytestmark = pytest.mark.usefixtures("with_and_without_numba")
ROWS, DIM = 30, 4


def constant(lr: float):
    return lambda step: torch.full_like(step, lr)


def twin_tables(seed: int = 0) -> tuple[EmbeddingTable, torch.nn.Embedding]:
    torch.manual_seed(seed)
    table = EmbeddingTable(ROWS, DIM)
    twin = torch.nn.Embedding(ROWS, DIM)
    twin.weight.data.copy_(table.weight.data)
    return table, twin


def run_against_dense_adam(schedule: str, scale: float, steps: int, seed: int = 0) -> float:
    """Train twins on the same rows; return the largest difference over the mean movement.

    A difference in the last bit of a weight is none.
    """
    table, twin = twin_tables(seed)
    start = table.weight.detach().clone()
    curve = SCHEDULES[schedule]

    def rate(step: torch.Tensor) -> torch.Tensor:
        return curve(0.01, step, steps)

    ours = RowAdam(table, rate, semantics="dense")
    theirs = torch.optim.Adam([twin.weight], lr=0.01)
    # A third of the rows often, a third now and then, a third rarely.
    often = torch.tensor([0.3, 0.03, 0.002]).repeat_interleave(ROWS // 3)
    for step in range(1, steps + 1):
        rows = (torch.rand(ROWS) < often).nonzero().squeeze(1)
        rows = rows if len(rows) else torch.tensor([0])
        target = torch.randn(len(rows), DIM)
        ((table(rows) - target).square().sum() * scale).backward()
        ours.step()
        theirs.param_groups[0]["lr"] = float(rate(torch.tensor(float(step))))
        theirs.zero_grad()
        ((twin(rows) - target).square().sum() * scale).backward()
        theirs.step()
    ours.flush()
    ours_now, theirs_now = table.weight.detach(), twin.weight.detach()
    last_bit = torch.finfo(torch.float32).eps * theirs_now.abs()
    difference = ((ours_now - theirs_now).abs() - last_bit).clamp(min=0).max()
    return float(difference / (theirs_now - start).abs().mean())


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_dense_semantics_follow_torch_adam_to_float_rounding(schedule, scale):
    assert run_against_dense_adam(schedule, scale, steps=900) < 5e-5


def test_gradients_as_small_as_epsilon_follow_torch_adam_too():
    # ε/√v is about 1 here: the expansion must hold for any ratio, not only for a negligible ε.
    assert run_against_dense_adam("constant", scale=1e-8, steps=900) < 5e-4


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000), steps=st.integers(1, 60))
def test_dense_semantics_hold_from_the_first_step(seed, steps):
    assert run_against_dense_adam("constant", 1.0, steps, seed) < 5e-5


def test_reading_a_row_brings_it_up_to_date():
    table, twin = twin_tables()
    ours = RowAdam(table, constant(0.01), semantics="dense")
    theirs = torch.optim.Adam([twin.weight], lr=0.01)
    for step in range(200):
        rows = torch.tensor([1]) if step == 0 else torch.tensor([2])
        table(rows).sum().backward()
        ours.step()
        theirs.zero_grad()
        twin(rows).sum().backward()
        theirs.step()
    assert not torch.allclose(table.weight[1], twin.weight[1])
    torch.testing.assert_close(table(torch.tensor([1])), twin(torch.tensor([1])))


def test_lazy_semantics_are_those_of_sparse_adam():
    table, twin = twin_tables()
    twin = torch.nn.Embedding.from_pretrained(table.weight.detach().clone(), False, sparse=True)
    ours = RowAdam(table, constant(0.01), semantics="lazy")
    theirs = torch.optim.SparseAdam([twin.weight], lr=0.01)
    for _ in range(50):
        rows = torch.randint(0, ROWS, (12,))  # repeats included
        target = torch.randn(12, DIM)
        (table(rows) - target).square().sum().backward()
        ours.step()
        theirs.zero_grad()
        (twin(rows) - target).square().sum().backward()
        theirs.step()
    torch.testing.assert_close(table.weight, twin.weight)


def test_untouched_rows_never_move_before_their_first_gradient():
    table, _ = twin_tables()
    before = table.weight.detach().clone()
    ours = RowAdam(table, constant(0.01), semantics="dense")
    for _ in range(20):
        table(torch.tensor([3])).sum().backward()
        ours.step()
    ours.flush()
    untouched = [row for row in range(ROWS) if row != 3]
    assert torch.equal(table.weight[untouched], before[untouched])


def test_decoupled_decay_reaches_touched_rows_only():
    table, _ = twin_tables()
    table.weight.data.fill_(1.0)
    ours = RowAdam(table, constant(0.1), semantics="lazy", weight_decay=0.5)
    (table(torch.tensor([4])) * 0.0).sum().backward()
    ours.step()
    # By hand: a zero gradient moves nothing, decay multiplies by 1 − 0.1 · 0.5.
    assert table.weight[4].tolist() == pytest.approx([0.95] * DIM)
    assert table.weight[5].tolist() == [1.0] * DIM


def test_state_round_trip_continues_bit_for_bit():
    def steps(table, optimizer, count, generator):
        for _ in range(count):
            rows = torch.randint(0, ROWS, (5,), generator=generator)
            table(rows).square().sum().backward()
            optimizer.step()

    table, _ = twin_tables()
    ours = RowAdam(table, constant(0.01))
    generator = torch.Generator().manual_seed(0)
    steps(table, ours, 30, generator)
    copy = EmbeddingTable(ROWS, DIM)
    copy.load_state_dict(table.state_dict())
    resumed = RowAdam(copy, constant(0.01))
    resumed.load_state({name: value.clone() for name, value in ours.state().items()})
    state = generator.get_state()
    steps(table, ours, 30, generator)
    generator.set_state(state)
    steps(copy, resumed, 30, generator)
    assert torch.equal(table.weight, copy.weight)


def test_unknown_semantics_are_refused():
    with pytest.raises(ValueError, match="semantics must be 'dense' or 'lazy', got 'eager'"):
        RowAdam(EmbeddingTable(3, 2), constant(0.1), semantics="eager")
