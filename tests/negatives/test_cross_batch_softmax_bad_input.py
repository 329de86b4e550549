"""Mistakes are refused in a sentence, and the state stays as it was."""

import copy

import pytest
import torch

from crossbatch.negatives import CrossBatchSoftmax


def towers(B=4, d=3, num_items=9, dtype=torch.float32):
    u, v = (torch.randn(B, d, dtype=dtype, requires_grad=True) for _ in range(2))
    return u, v, torch.randint(1, num_items + 1, (B,))


def counts(num_items=9):
    return torch.arange(1, num_items + 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"users": torch.randn(4, 2)}, "positives have dimension 3, users 2"),
        ({"users": torch.randn(3, 3)}, "positives must hold one column per user, 3, got 4"),
        ({"users": torch.randn(4, 2, 5)}, r"interests must have shape \[B, K, d\].*\[4, 2, 5\]"),
        ({"users": torch.full((4, 3), float("nan"))}, "users hold 12 values that are not finite"),
        ({"items": torch.randn(4, 2), "users": torch.randn(4, 2)}, "dimension"),
        ({"items": torch.full((4, 3), float("inf"))}, "positives.embeddings hold 12"),
        (
            {"item_ids": torch.tensor([1, 2, 3, 99])},
            "item_ids must lie between 0 and 9, got 1 to 99",
        ),
        (
            {"item_ids": torch.tensor([1, 2, 3, -1])},
            "item_ids must lie between 0 and 9, got -1 to 3",
        ),
        ({"item_ids": torch.tensor([1, 2, 3, 0])}, "item_ids hold 0, whose count is 0"),
        ({"item_ids": torch.tensor([1.0, 2, 3, 4])}, "item_ids must be int64, got torch.float32"),
        (
            {"item_ids": torch.tensor([[1], [2], [3], [4]])},
            r"item_ids must hold one entry.*\[4, 1\]",
        ),
        (
            {"item_ids": torch.tensor([1, 2])},
            r"item_ids must hold one entry.*\[4\], got shape \[2\]",
        ),
        ({"known_positives": torch.zeros(3, 2).long()}, "shape"),
        ({"known_positives": torch.zeros(4, 2)}, "known positives must be int64"),
        ({"exclude": torch.zeros(4, 3).bool()}, "exclude must be a bool tensor of shape"),
        ({"reduction": "max"}, "reduction must be 'mean', 'sum' or 'none', got 'max'"),
    ],
)
def test_bad_input_is_refused_and_the_state_unchanged(change, message):
    table = counts()
    table[0] = 0
    loss_fn = CrossBatchSoftmax(3, capacity=8, warmup_steps=0, item_counts=table)
    loss_fn(*towers())
    before = copy.deepcopy(loss_fn.state_dict())
    u, v, ids = towers()
    arguments = {"users": u, "items": v, "item_ids": ids} | change
    with pytest.raises(ValueError, match=message):
        loss_fn(**arguments)
    torch.testing.assert_close(loss_fn.state_dict(), before, rtol=0, atol=0)


def test_the_state_of_another_capacity_is_refused():
    loss_fn, other = CrossBatchSoftmax(3, capacity=8), CrossBatchSoftmax(3, capacity=9)
    other(*towers())
    with pytest.raises(ValueError, match=r"capacity 9 and dim 3, this one has 8 and 3"):
        loss_fn.load_state_dict(other.state_dict())
    assert len(loss_fn.bank) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": -1}, "capacity must be 0"),
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"warmup_steps": -5}, "warmup_steps must be 0 or more, got -5"),
        ({"temperature": 0}, "temperature must be positive and finite, got 0"),
        ({"temperature": -0.1}, "temperature must be positive and finite, got -0.1"),
        ({"item_gradient": "both"}, "one of paper, balanced, deferred, got 'both'"),
        ({"mask": "all"}, "mask must be one of both, batch, none, got 'all'"),
        ({"chunk_size": 0}, "chunk_size must be at least 1 or None, got 0"),
        ({"bank_dtype": "float8"}, "dtype must be one of float32, bfloat16, float16, got 'float8'"),
        ({"item_counts": torch.tensor([1.0, -1.0])}, "item_counts must be finite.*got -1"),
        ({"item_counts": [1, 2, 3]}, "item_counts must be a tensor, got list"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CrossBatchSoftmax(**({"dim": 3} | options))
