"""The loss of a large batch in chunks: the same numbers, the memory of one chunk."""

import pytest
import torch
from torch import nn

from crossbatch.negatives import CachedSoftmax, CrossBatchSoftmax

B, D = 23, 6


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    users = torch.randn(B, 5, generator=generator, dtype=torch.float64)
    items = torch.randn(B, 7, generator=generator, dtype=torch.float64)
    return users, items, torch.randint(1, 12, (B,), generator=generator)


def towers(dropout=0.0):
    torch.manual_seed(0)
    users = nn.Sequential(nn.Linear(5, 9), nn.Dropout(dropout), nn.Tanh(), nn.Linear(9, D))
    items = nn.Sequential(nn.Linear(7, 9), nn.Dropout(dropout), nn.Tanh(), nn.Linear(9, D))
    return users.double(), items.double()


def gradients(loss, *modules):
    parameters = [p for module in modules for p in module.parameters()]
    return torch.autograd.grad(loss, parameters)


@pytest.mark.parametrize("chunk_size", [1, 4, 23, 100])
def test_values_and_gradients_are_those_of_the_whole_batch(chunk_size):
    """Two steps, so that the bank takes part; the definition is one cross-entropy over all rows."""
    user_tower, item_tower = towers()
    losses = [
        CrossBatchSoftmax(D, 16, 1, temperature=0.3, symmetric=True).double() for _ in range(2)
    ]
    cached = CachedSoftmax(losses[0], user_tower, item_tower, chunk_size=chunk_size)
    for seed in range(3):
        users, items, ids = batch(seed)
        mine = cached(users, items, ids)
        plain = losses[1](user_tower(users), item_tower(items), ids)
        torch.testing.assert_close(mine, plain)
        found = zip(
            gradients(mine, user_tower, item_tower),
            gradients(plain, user_tower, item_tower),
            strict=True,
        )
        for one, other in found:
            torch.testing.assert_close(one, other)
    for name, value in losses[0].state_dict().items():
        torch.testing.assert_close(value, losses[1].state_dict()[name])


def test_any_loss_of_vectors_will_do_and_its_parameters_learn():
    user_tower, item_tower = towers()
    scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def clip(u, v):
        return nn.functional.cross_entropy(scale * u @ v.T, torch.arange(len(u)))

    users, items, _ = batch()
    mine = CachedSoftmax(clip, user_tower, item_tower, chunk_size=5)(users, items)
    plain = clip(user_tower(users), item_tower(items))
    torch.testing.assert_close(torch.autograd.grad(mine, scale), torch.autograd.grad(plain, scale))


def test_dropout_draws_the_same_numbers_in_both_passes():
    """The chunks one after the other in plain autograd, from the same seed."""
    user_tower, item_tower = towers(dropout=0.5)
    users, items, ids = batch()
    loss_fn = CrossBatchSoftmax(D, 0)
    torch.manual_seed(3)
    mine = CachedSoftmax(loss_fn, user_tower, item_tower, chunk_size=8)(users, items, ids)
    found = gradients(mine, user_tower, item_tower)
    torch.manual_seed(3)
    u = torch.cat([user_tower(part) for part in users.split(8)])
    v = torch.cat([item_tower(part) for part in items.split(8)])
    plain = loss_fn(u, v, ids)
    torch.testing.assert_close(mine, plain)
    for one, other in zip(found, gradients(plain, user_tower, item_tower), strict=True):
        torch.testing.assert_close(one, other)


def test_the_backward_pass_holds_one_chunk_at_a_time():
    order = []

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, D).double()

        def forward(self, x):
            order.append(int(x[0, 0] * 1000))
            return self.layer(x)

    tower = Tower()
    users, _, ids = batch()
    starts = [int(part[0, 0] * 1000) for part in users.split(6)]
    loss = CachedSoftmax(CrossBatchSoftmax(D, 0), tower, tower, chunk_size=6)(users, users, ids)
    assert order == starts * 2
    order.clear()
    loss.backward()
    assert order == (starts * 2)[::-1]  # each chunk once more, the last first


def test_inputs_may_be_trees_of_tensors():
    user_tower, item_tower = towers()
    users, items, ids = batch()
    loss_fn = CrossBatchSoftmax(D, 0)
    step = CachedSoftmax(
        loss_fn, lambda x: user_tower(x["a"] + x["rest"][0]), item_tower, chunk_size=7
    )
    mine = step({"a": users, "rest": (users, "text")}, items, item_ids=ids)
    torch.testing.assert_close(mine, loss_fn(user_tower(2 * users), item_tower(items), ids))


def test_towers_are_not_its_own():
    step = CachedSoftmax(CrossBatchSoftmax(D, 4), *towers())
    assert not list(step.parameters())
    assert all(name.startswith("loss.") for name in step.state_dict())


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        CachedSoftmax(CrossBatchSoftmax(D), *towers(), chunk_size=0)
    users, items, ids = batch()
    step = CachedSoftmax(CrossBatchSoftmax(D), *towers())
    with pytest.raises(ValueError, match=r"user_inputs must be tensors with equally many rows"):
        step((users, users[:3]), items, ids)
