"""Deferred item gradients: what rows collect, when the tower gets it, and resuming in between."""

import copy

import pytest
import torch

from crossbatch.negatives import (
    Candidates,
    Corpus,
    CrossBatchSampler,
    CrossBatchSoftmax,
    sampled_softmax_loss,
)
from crossbatch.negatives.deferred import GradientBank

DIM, ITEMS = 3, 40


class World:
    """Batches of given sizes, a tower that is a table, and users."""

    def __init__(self, sizes, seed=0):
        torch.manual_seed(seed)
        self.table = torch.nn.Parameter(torch.randn(ITEMS + 1, DIM))
        self.ids = [torch.randint(1, ITEMS + 1, (size,)) for size in sizes]
        self.users = [torch.randn(size, DIM) for size in sizes]
        counts = torch.rand(ITEMS + 1) + 0.1
        self.corpus = Corpus(counts, DIM)

    def encode(self, ids):
        return self.table[ids]


def train(world, sampler, steps, *, enqueue_first=False, lr=0.0):
    """Gradients of the table at each step, with the sampler in the loop."""
    found = []
    for step in steps:
        ids = world.ids[step]
        positives = Candidates(world.encode(ids), ids, sampler.log_q(ids))
        negatives = sampler.draw(world.users[step], positives, world.encode)
        loss = sampled_softmax_loss(world.users[step], positives, negatives)
        if enqueue_first:
            sampler.observe(positives)
        world.table.grad = None
        loss.backward()
        gradient = world.table.grad
        if not enqueue_first:
            sampler.observe(positives)
        found.append(gradient)
        with torch.no_grad():
            world.table -= lr * gradient
    return found


def brute_force(world, sampler, capacity):
    """The same gradients by hand: every cached row keeps a list of what losses wanted of it."""
    bank, found = [], []  # rows: [vector, id, log q, collected, reads]
    for ids, users in zip(world.ids, world.users, strict=True):
        users = users.double()
        table = world.table.detach().double().requires_grad_()
        log_q = sampler.log_q(ids).double()
        live = table[ids]
        cached = torch.stack([row[0] for row in bank]).requires_grad_() if bank else None
        columns = live if cached is None else torch.cat([live, cached])
        column_ids = torch.cat([ids, *[row[1].view(1) for row in bank]])
        column_log_q = torch.cat([log_q, *[row[2].view(1) for row in bank]])
        logits = users @ columns.T - column_log_q
        same = column_ids == ids.unsqueeze(1)
        same[:, : len(ids)] &= ~torch.eye(len(ids), dtype=torch.bool)
        losses = torch.nn.functional.cross_entropy(
            logits.masked_fill(same, -torch.inf), torch.arange(len(ids)), reduction="mean"
        )
        probabilities = logits.masked_fill(same, -torch.inf).softmax(dim=1).detach()
        (gradient, *of_bank) = torch.autograd.grad(
            losses, [table] if cached is None else [table, cached]
        )
        pairs = 0
        for row, wanted in zip(bank, of_bank[0] if of_bank else [], strict=True):
            row[3], row[4] = row[3] + wanted, row[4] + 1
        leaving = bank[: max(0, len(bank) + len(ids) - capacity)]
        for row in leaving:
            gradient[row[1]] += row[3]
            pairs += row[4]
        # What is missing comes from the batch's own columns as negatives, scaled up.
        missing, others = max(0, len(bank) - pairs), len(ids) - 1
        if missing:
            pushes = probabilities[:, : len(ids)] / len(ids)
            pushes.fill_diagonal_(0)
            gradient.index_add_(0, ids, missing / others * (pushes.T @ users))
        found.append(gradient)
        rows = [
            [v.detach(), i, q, torch.zeros(DIM).double(), 0]
            for v, i, q in zip(live, ids, log_q, strict=True)
        ]
        bank = [*bank[len(leaving) :], *rows]
    return found


@pytest.mark.parametrize("sizes", [[4] * 30, [2, 5, 3] * 8, [4] * 3])
@pytest.mark.parametrize("enqueue_first", [False, True])
def test_the_tower_gets_what_rows_collected_when_they_leave(sizes, enqueue_first):
    world = World(sizes)
    sampler = CrossBatchSampler(world.corpus, capacity=10, warmup_steps=0, item_gradient="deferred")
    expected = brute_force(world, sampler, capacity=10)
    found = train(world, sampler, range(len(sizes)), enqueue_first=enqueue_first)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-6)


def test_a_full_bank_gives_the_item_gradient_of_a_true_large_batch_in_total():
    """With towers at rest each row gets, summed over its life, its gradient as a live column."""
    world = World([4] * 40)
    sampler = CrossBatchSampler(world.corpus, capacity=8, warmup_steps=0, item_gradient="deferred")
    total = sum(train(world, sampler, range(40)))
    # Item gradients of a row sum to zero; what is still in the bank has not arrived.
    waiting = sampler.bank.gradients[sampler.bank._window()].sum(dim=0)
    early = World([4] * 40)
    sampler = CrossBatchSampler(early.corpus, capacity=8, warmup_steps=0, item_gradient="deferred")
    beginning = sum(train(early, sampler, range(3)))  # where the batch stood in for the bank
    left = sampler.bank.gradients[sampler.bank._window()].sum(dim=0)
    torch.testing.assert_close(
        (total - beginning).sum(dim=0) + waiting - left, torch.zeros(DIM), atol=1e-4, rtol=0
    )


def test_warm_up_begins_balanced():
    """Rows that no loss has read have nothing to give: the batch stands in for all of the bank."""
    world = World([4] * 8)
    options = {"capacity": 8, "warmup_steps": 4}
    deferred = CrossBatchSampler(world.corpus, item_gradient="deferred", **options)
    balanced = CrossBatchSampler(world.corpus, item_gradient="balanced", **options)
    for sampler in (deferred, balanced):
        sampler.first = train(world, sampler, range(5))[-1]
    read_now = 4  # rows of the first read leave at once and bring their one gradient
    difference = deferred.first - balanced.first
    assert deferred.bank.reads.max() == 1
    assert difference.abs().max() > 0
    sums = deferred.bank.gradients
    assert (sums[deferred.bank._window()].abs().sum(dim=1) > 0).sum() == 8 - read_now


def test_a_state_taken_half_way_resumes_to_the_bit():
    sizes = [4] * 24
    world = World(sizes)
    whole = CrossBatchSampler(world.corpus, capacity=10, warmup_steps=2, item_gradient="deferred")
    expected = train(world, whole, range(24), lr=0.1)
    world = World(sizes)
    first = CrossBatchSampler(world.corpus, capacity=10, warmup_steps=2, item_gradient="deferred")
    train(world, first, range(11), lr=0.1)
    second = CrossBatchSampler(world.corpus, capacity=10, warmup_steps=2, item_gradient="deferred")
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    resumed = train(world, second, range(11, 24), lr=0.1)
    for mine, theirs in zip(resumed, expected[11:], strict=True):
        assert torch.equal(mine, theirs)


def test_without_gradients_nothing_is_collected_or_encoded():
    world = World([4] * 4)
    sampler = CrossBatchSampler(world.corpus, capacity=8, warmup_steps=0, item_gradient="deferred")
    train(world, sampler, range(3))
    before = sampler.bank.gradients.clone()
    positives = Candidates(world.encode(world.ids[3]), world.ids[3], sampler.log_q(world.ids[3]))
    with torch.no_grad():
        drawn = sampler.draw(world.users[3], positives, lambda ids: pytest.fail("encoded"))
    assert len(drawn) == 4 + 8
    assert torch.equal(sampler.bank.gradients, before)


def test_rows_may_be_of_16_bits_and_sums_stay_float32():
    world = World([4] * 12)
    sampler = CrossBatchSampler(
        world.corpus, capacity=8, warmup_steps=0, item_gradient="deferred", bank_dtype="bfloat16"
    ).bfloat16()
    assert sampler.bank.gradients.dtype == torch.float32
    world.table = torch.nn.Parameter(world.table.detach().bfloat16())
    world.users = [users.bfloat16() for users in world.users]
    assert all(bool(torch.isfinite(each).all()) for each in train(world, sampler, range(12)))


def test_a_bank_of_its_own_says_how_many_pairs_its_sums_have():
    world = World([4] * 9)
    bank = GradientBank(8, DIM)
    pairs = []
    for ids, users in zip(world.ids, world.users, strict=True):
        positives = Candidates(world.encode(ids), ids, torch.zeros(len(ids)))
        cached, count = bank.columns(world.encode, len(ids))
        pairs.append((len(cached), count))
        sampled_softmax_loss(users, positives, positives + cached).backward()
        bank.enqueue(positives)
    assert pairs == [(0, 0), (4, 0), (8, 8), *[(8, 8)] * 6]


@pytest.mark.parametrize("capacity", [10, 3])
def test_the_drop_in_loss_gives_the_gradients_of_the_sampler(capacity):
    sizes = [4] * 20
    world = World(sizes)
    sampler = CrossBatchSampler(
        world.corpus, capacity=capacity, warmup_steps=3, item_gradient="deferred"
    )
    expected = train(world, sampler, range(20))
    loss_fn = CrossBatchSoftmax(
        DIM, capacity, 3, world.corpus.item_counts, item_gradient="deferred"
    )
    for ids, users, theirs in zip(world.ids, world.users, expected, strict=True):
        world.table.grad = None
        loss_fn(users, world.encode(ids), ids, encode=world.encode).backward()
        torch.testing.assert_close(world.table.grad, theirs)


def test_the_drop_in_loss_asks_for_the_tower():
    loss_fn = CrossBatchSoftmax(DIM, 8, 0, item_gradient="deferred")
    users, items, ids = torch.randn(4, DIM), torch.randn(4, DIM), torch.arange(4)
    loss_fn.eval()(users, items, ids)  # nothing is collected: nothing to encode
    with pytest.raises(ValueError, match="encode=item_tower"):
        loss_fn.train()(users, items, ids)
