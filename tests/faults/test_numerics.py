"""Numbers at the edge: huge, tiny, zero, none; the answer is exact, finite, or a clear error.

Extreme logits and rows without negatives are in `tests/negatives/test_loss.py`, values that are not
finite in `test_loss_bad_input.py`.
"""

from __future__ import annotations

import math

import pytest
import torch

from crossbatch.models import MODELS, build_model
from crossbatch.negatives import (
    Candidates,
    CrossBatchSoftmax,
    MemoryBank,
    NonFiniteLossError,
    sampled_softmax_loss,
)
from crossbatch.queries import Queries

HUGE = 2**62


def batch(vectors: torch.Tensor, ids: list[int]) -> Candidates:
    return Candidates(vectors, torch.tensor(ids), torch.zeros(len(ids)))


def test_zero_vectors_give_the_uniform_softmax() -> None:
    u = torch.zeros(3, 4, requires_grad=True)
    positives = batch(torch.zeros(3, 4, requires_grad=True), [1, 2, 3])
    loss = sampled_softmax_loss(u, positives, positives)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(3))
    assert torch.equal(u.grad, torch.zeros(3, 4))


@pytest.mark.parametrize("scale", [1e-30, 1e-38, 1e-44, 0.0])
def test_denormal_vectors(scale: float) -> None:
    """The products vanish; nothing else may."""
    torch.manual_seed(0)
    u = (torch.randn(5, 8) * scale).requires_grad_()
    v = (torch.randn(5, 8) * scale).requires_grad_()
    loss = sampled_softmax_loss(u, batch(v, [1, 2, 3, 4, 5]), batch(v, [1, 2, 3, 4, 5]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(5), rel=1e-6)
    assert torch.isfinite(u.grad).all()
    assert float(u.grad.abs().max()) <= 2 * float(v.detach().abs().max())


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-38, 1e-20, 1e6])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_normalised_towers_of_any_scale_have_finite_vectors_and_gradients(
    name: str, scale: float
) -> None:
    torch.manual_seed(0)
    model = build_model(name, 20, 8, normalize=True, sparse=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    history = torch.tensor([[1, 2, 3, 0], [0, 0, 0, 0], [4, 4, 4, 4]])
    u, v = model(history, torch.tensor([5, 6, 7]))
    if isinstance(u, Queries):  # divided by the temperature
        assert not u.log_weights.isnan().any()
        u = u.vectors * model.user_tower.log_temperature.exp()
    (u.sum() + v.sum()).backward()
    for tensor in (u, v):
        assert torch.isfinite(tensor).all()
        assert float(tensor.detach().norm(dim=-1).max()) <= 1 + 1e-5
    for parameter in model.parameters():
        assert parameter.grad is None or not parameter.grad.isnan().any()


def test_huge_ids_are_told_apart_to_the_last_bit() -> None:
    """As float64 these would be one number, and every negative a false one."""
    ids = [HUGE, HUGE + 1, HUGE + 2]
    vectors = torch.eye(3)
    positives = batch(vectors, ids)
    bank = MemoryBank(4, 3)
    bank.enqueue(positives)
    assert bank.read().item_ids.tolist() == ids
    alone = sampled_softmax_loss(vectors, positives, positives + bank.read(), reduction="none")
    # own column 1, two others of the batch and two of the bank at 0; the bank's own copy is masked
    assert alone.tolist() == pytest.approx([math.log(1 + 4 * math.exp(-1))] * 3)


def test_bfloat16_vectors_train_through_the_bank_with_finite_losses() -> None:
    torch.manual_seed(0)
    loss_fn = CrossBatchSoftmax(dim=8, capacity=32, warmup_steps=0)
    for step in range(6):
        u = torch.randn(8, 8, dtype=torch.bfloat16, requires_grad=True)
        v = torch.randn(8, 8, dtype=torch.bfloat16, requires_grad=True)
        loss = loss_fn(u, v, torch.arange(8) + 8 * step)
        loss.backward()
        assert loss.dtype == torch.float32
        assert torch.isfinite(loss)
        assert u.grad.dtype == torch.bfloat16
        assert torch.isfinite(u.grad).all()
        assert torch.isfinite(v.grad).all()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_one_poisoned_vector_stops_training_and_never_enters_the_bank(poison: float) -> None:
    torch.manual_seed(0)
    loss_fn = CrossBatchSoftmax(dim=4, capacity=16, warmup_steps=0)
    u, v = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    loss_fn(u, v, torch.arange(4)).backward()
    before = {name: value.clone() for name, value in loss_fn.state_dict().items()}
    bad = v.detach().clone()
    bad[2, 1] = poison
    with pytest.raises(NonFiniteLossError):
        loss_fn(u, bad, torch.arange(4))
    for name, value in loss_fn.state_dict().items():
        assert torch.equal(value, before[name]), name
