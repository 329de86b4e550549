"""Normalised towers over content: the published item gradient turns them into one direction."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from crossbatch.negatives import CrossBatchSoftmax

USERS, ITEMS, B, TOP = 200, 400, 32, 20


def train(capacity, item_gradient="paper"):
    """Share of the mean direction of all items, and how many of a user's best 20 are found."""
    torch.manual_seed(0)
    features, taste = torch.randn(ITEMS, 8), torch.randn(USERS, 8)
    choice = (taste @ features.T).softmax(dim=1)  # what each user chooses
    items, users = (nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(2))
    loss_fn = CrossBatchSoftmax(
        16,
        capacity,
        warmup_steps=50,
        item_counts=choice.mean(dim=0),
        temperature=0.1,
        item_gradient=item_gradient,
    )
    optimizer = torch.optim.Adam([*items.parameters(), *users.parameters()], lr=0.01)
    for _ in range(300):
        who = torch.randint(USERS, (B,))
        ids = torch.multinomial(choice[who], 1).squeeze(1)
        u, v = normalize(users(taste[who]), dim=1), normalize(items(features[ids]), dim=1)
        optimizer.zero_grad()
        loss_fn(u, v, ids).backward()
        optimizer.step()
    with torch.no_grad():
        V, U = normalize(items(features), dim=1), normalize(users(taste), dim=1)
    found, best = (U @ V.T).topk(TOP).indices, choice.topk(TOP).indices
    hits = (found.unsqueeze(2) == best.unsqueeze(1)).any(dim=2).float().mean()
    return float(V.mean(dim=0).norm()), float(hits)


@pytest.fixture(scope="module")
def in_batch():
    return train(capacity=0)


def test_the_published_gradient_collapses(in_batch):
    direction, hits = train(19 * B, "paper")
    assert direction > in_batch[0] + 0.15
    assert hits < 0.7 * in_batch[1]


def test_the_balanced_gradient_does_not(in_batch):
    direction, hits = train(19 * B, "balanced")
    assert direction < in_batch[0] + 0.1
    assert hits > 0.95 * in_batch[1]
